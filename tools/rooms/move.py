# ruff: noqa
# mypy: ignore-errors
"""move.py CHECKOUT [--commit] : moves the modules into rooms, room by room, imports rewritten."""

import ast, pathlib, re, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import names

CHECKOUT = pathlib.Path(sys.argv[1]).resolve()
ROOT = CHECKOUT / "src/vedette"
ROOMS = [
    "domain",
    "ledger",
    "config",
    "judging",
    "policy",
    "memory",
    "engine",
    "operations",
    "store",
    "adapters",
    "app",
    "interfaces",
    "testing",
]
DOC = {
    "domain": "What the fleet speaks of: frozen data, arithmetic, state machines, ports. No SQL, no network.",
    "domain/base": "What stands below the nouns: errors, clock, canonical bytes; it alone touches clock and disk.",
    "ledger": "The record: how it is proved, checked by anybody (`verify`) and read by people (`history`).",
    "policy": "Asks, publishes, signs, distributes and replays policy.",
    "memory": "What an agent may know: retrieval, lineage, training sets, review; the store keeps it.",
    "engine": "One run from event to effect: ingest, schedule, decide, perform, recover.",
    "engine/scheduler": "Which run goes on next, which waits, and what becomes of one that fails.",
    "operations": "What people order (each leaves an entry) and what they try (it leaves none).",
    "store/readmodel": "What people look at, as tables: a function of the entries alone.",
    "adapters/reasoners": "What answers the port Reasoner: a judge in this process, in a worker, a model by ADK.",
    "adapters/tools": "What answers the port Performer.",
    "adapters/policy_engines": "What answers the port PolicyEngine: regorus, OPA, OPA's Wasm.",
    "adapters/identity": "Who an agent or a person is: keys, tokens, secrets.",
    "adapters/telemetry": "Metrics and traces as others read them.",
    "adapters/files": "Files as sources of events.",
    "adapters/host": "This host's load as a source of events.",
    "adapters/schedule": "Schedules as a source of events.",
    "app": "The composition root, what follows the ledger, and what works on a fleet from outside.",
    "app/followers": "What follows the ledger beside the line, and may fall behind it.",
    "interfaces": "How people and programs come in: command line, HTTP, daemon, and how answers look.",
    "interfaces/render": "How answers look: text, HTML and SVG of what the ledger's history says.",
}
# Words that are also event types, schemas, packages of Rego: rewritten only where surely a module.
AMBIGUOUS = set(
    "action agent event run undo tick question decision approval rights lessons readers identity gateway archived proof policy memory hold".split()
)


def sh(*args):
    return subprocess.run(args, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout


def modules():
    return [
        str(p.relative_to(ROOT))[:-3]
        for p in sorted(ROOT.rglob("*.py"))
        if "/_"
        not in "/" + str(p.relative_to(ROOT)).replace("__init__", "").replace("__main__", "")
    ]


def dotted(path):
    path = path.removesuffix("/__init__") if path != "__init__" else ""
    return ".".join(["vedette", *path.split("/")]) if path else "vedette"


NAME = r"[A-Za-z_]\w*"


class Rewriter:
    def __init__(self, move):  # {old path: new path}
        self.move = move
        self.map = {dotted(a): dotted(b) for a, b in move.items()}
        self.known = {dotted(m) for m in modules()}
        self.paths = {}
        self._bound = {}
        for m in list(self.known):
            if "." in m:
                self.bound_in(m.rpartition(".")[0])
        for a, b in move.items():
            self.paths[a] = b
            if a.endswith("/__init__"):
                self.paths[a.removesuffix("/__init__")] = b.removesuffix("/__init__")

    def name(self, full):
        """The new dotted name of a module or of something in it; None if it stays."""
        parts = full.split(".")
        for k in range(len(parts), 1, -1):
            head = ".".join(parts[:k])
            if head in self.known:
                if head in self.map and self.map[head] != head:
                    return ".".join([self.map[head], *parts[k:]])
                return None
        return None

    def bound_in(self, package):
        """Names that a package's own __init__ binds: there they hide a module of the same name."""
        if package not in self._bound:
            init = ROOT.parent / package.replace(".", "/") / "__init__.py"
            names_ = set()
            if init.exists():
                for n in ast.walk(ast.parse(init.read_text())):
                    if isinstance(n, ast.ImportFrom) and n.module != package:
                        names_ |= {a.asname or a.name for a in n.names}
                    elif isinstance(n, (ast.FunctionDef, ast.ClassDef)):
                        names_.add(n.name)
            self._bound[package] = names_
        return self._bound[package]

    def from_lines(self, module, aliases, indent, kept=frozenset()):
        """-> (list of import lines, {old local name: new local name})"""
        groups, renames = {}, {}
        for name, asname in aliases:
            full = f"{module}.{name}"
            if name in kept:
                asname = name
            if full in self.known and name not in self.bound_in(module):
                new = self.map.get(full, full)
                package, _, last = new.rpartition(".")
                if asname:
                    item = last if asname == last else f"{last} as {asname}"
                else:
                    item = last
                    if last != name:
                        renames[name] = last
            else:
                package = self.map.get(module, module)
                item = name if not asname else f"{name} as {asname}"
            groups.setdefault(package, []).append(item)
        return [(p, items) for p, items in groups.items()], renames

    def python(self, text, path):
        tree = ast.parse(text)
        lines = text.split("\n")
        edits, taken, local = [], set(), {}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and node.level == 0
                and node.module
                and (node.module == "vedette" or node.module.startswith("vedette."))
            ):
                aliases = [(a.name, a.asname) for a in node.names]
                groups, renames = self.from_lines(node.module, aliases, node.col_offset)
                if len(groups) == 1 and groups[0][0] == node.module and not renames:
                    taken.update(range(node.lineno, node.end_lineno + 1))
                    continue
                local |= renames
                edits.append((node, aliases))
                taken.update(range(node.lineno, node.end_lineno + 1))
            elif isinstance(node, ast.Import) and any(
                a.name.startswith("vedette.") for a in node.names
            ):
                edits.append((node, None))
                taken.update(range(node.lineno, node.end_lineno + 1))
        # names of modules that change: used identifiers
        kept_as = {}
        if local:
            bound = set()
            for n in ast.walk(tree):
                if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                    bound.add(n.id)
                elif isinstance(n, ast.arg):
                    bound.add(n.arg)
                elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    bound.add(n.name)
                elif isinstance(n, ast.ExceptHandler) and n.name:
                    bound.add(n.name)
            used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | bound
            for n in ast.walk(tree):
                if isinstance(n, (ast.Import, ast.ImportFrom)):
                    used |= {(a.asname or a.name).split(".")[0] for a in n.names}
            for old, new in list(local.items()):
                if old in bound or new in used:
                    kept_as[old] = new
                    del local[old]
        spots = []
        for n in ast.walk(tree):
            if isinstance(n, ast.Name) and n.id in local:
                spots.append((n.lineno, n.col_offset, n.id, local[n.id]))
        # uses first (same lines, from the right), then imports from the bottom
        for line, col, old, new in sorted(spots, reverse=True):
            raw = lines[line - 1].encode()
            if raw[col : col + len(old.encode())].decode(errors="replace") != old:
                print("  ! use", path, line, old)
                continue
            lines[line - 1] = (raw[:col] + new.encode() + raw[col + len(old.encode()) :]).decode()
        for i, line in enumerate(lines, 1):
            if i not in taken:
                lines[i - 1] = self.text_line(line, path)
        for node, groups in sorted(edits, key=lambda e: -e[0].lineno):
            indent = " " * node.col_offset
            first, last = node.lineno - 1, node.end_lineno - 1
            before = lines[first].encode()[: node.col_offset].decode()
            after = lines[last].encode()[node.end_col_offset :].decode()
            # comments inside of a parenthesised import: kept behind
            comments = (
                [l[l.index("#") :] for l in lines[first:last] if "#" in l] if last > first else []
            )
            if groups is None:
                new = []
                for a in node.names:
                    renamed = self.name(a.name) or a.name
                    if renamed != a.name and not a.asname:
                        pass
                    new.append(f"import {renamed}" + (f" as {a.asname}" if a.asname else ""))
            else:
                new = []
                for package, items in self.from_lines(node.module, groups, 0, frozenset(kept_as))[
                    0
                ]:
                    new.append(
                        f"from {package} import {', '.join(items)}"
                        if len(items) < 4
                        else f"from {package} import (" + ", ".join(items) + ")"
                    )
            tail = after if not comments else after + "  " + " ".join(comments)
            if before.strip():  # `import a; import b` on one line
                lines[first : last + 1] = [before + "; ".join(new) + tail]
            else:
                lines[first : last + 1] = [indent + n for n in new[:-1]] + [indent + new[-1] + tail]
        return "\n".join(lines)

    def text_line(self, line, path):
        if "vedette" in line:
            line = re.sub(
                rf"\bfrom (vedette(?:\.{NAME})*) import ((?:{NAME}(?: as {NAME})?)(?:, {NAME}(?: as {NAME})?)*)",
                self._from,
                line,
            )

            def other(m):
                full, end = m.group(0), m.end()
                rest = line[end:]
                if re.match(r"/\d", rest):
                    return full
                if line[: m.start()].endswith(("data.", "package ")):
                    return full
                second = full.split(".")[1]
                if second in AMBIGUOUS and f"vedette.{second}" in self.known:
                    ticked = line[: m.start()].endswith("`")
                    dots = full.count(".")
                    sure = line[: m.start()].rstrip().endswith(("import", "from"))
                    if path.suffix == ".md":
                        ticked = ticked and path.name == "glossary.md"
                    elif path.suffix != ".py":
                        ticked = False
                    if not (sure or ticked):
                        return full
                return self.name(full) or full

            line = re.sub(rf"\bvedette(?:\.{NAME})+", other, line)
        return self.path_line(line, path)

    def _from(self, m):
        module = m.group(1)
        aliases = [tuple((part.split(" as ") + [None])[:2]) for part in m.group(2).split(", ")]
        groups, renames = self.from_lines(module, aliases, 0)
        back = {v: k for k, v in renames.items()}
        out = []
        for package, items in groups:
            items = [f"{i} as {back[i]}" if i in back else i for i in items]
            out.append(f"from {package} import {', '.join(items)}")
        if len(out) > 1:
            print("  ! text import of two:", m.group(0))
        return "; ".join(out)

    def path_line(self, line, path):
        def one(m):
            prefix, body, suffix = m.group(1) or "", m.group(2), m.group(3) or ""
            if not prefix and "/" not in body:
                return m.group(0)
            for cut in range(len(body.split("/")), 0, -1):
                head = "/".join(body.split("/")[:cut])
                rest = body[len(head) :]
                if rest and suffix:
                    pass
                if head in self.paths and self.paths[head] != head:
                    if rest and head + "/__init__" not in self.move:
                        return m.group(0)
                    if rest:  # a folder, with something that is no module below it
                        if cut == 1 and not prefix:
                            return m.group(0)
                    elif not suffix and not prefix and cut == 1:
                        return m.group(0)
                    if (
                        suffix == ".py"
                        and not rest
                        and head + "/__init__" in self.move
                        and head not in self.move
                    ):
                        return m.group(0)
                    return prefix + self.paths[head] + rest + suffix
            return m.group(0)

        return (
            re.sub(
                r"(?<![\w/.-])((?:\.{1,2}/)*(?:src/)?vedette/)?([A-Za-z_]\w*(?:/[A-Za-z_]\w*)*)(\.py)?(?![\w-]|/\w|\.(?!py\b)\w)",
                one,
                line,
            )
            if "/" in line
            else line
        )


SKIP = re.compile(
    r"(^|/)(CHANGELOG\.md|requirements.*\.lock|.*\.lock|.*\.(jsonl?|rego|txt|yaml|yml|csv|svg|xz|tar|gz|wasm|eml|tf|hcl|html|sql|tsv))$|^\.importlinter$|^src/vedette/_wasm|^policies/"
)
DECISIONS = re.compile(r"^docs/decisions/")


def room_of(new):
    return new.split("/")[0]


def run(room, everything):
    move = {a: b for a, b in everything.items() if room_of(b) == room and a != b}
    if not move and room != "testing":
        return False
    rewriter = Rewriter(move)
    tracked = [f for f in sh("git", "ls-files").split("\n") if f]
    for f in tracked:
        p = CHECKOUT / f
        if not p.is_file() or p.is_symlink() or SKIP.search(f) or f == "pyproject.toml" and False:
            continue
        try:
            text = p.read_text()
        except UnicodeDecodeError:
            continue
        if f.endswith(".py"):
            new = rewriter.python(text, p)
        else:
            new = "\n".join(
                l if "TID251" in l or "S608" in l else rewriter.text_line(l, p)
                for l in text.split("\n")
            )
        if new != text:
            p.write_text(new)
    for a, b in move.items():
        src, dst = ROOT / f"{a}.py", ROOT / f"{b}.py"
        dst.parent.mkdir(parents=True, exist_ok=True)
        sh("git", "mv", str(src), str(dst))
    # what else lay in a folder
    for folder in sorted({str(pathlib.PurePath(b).parent) for b in move.values()}):
        steps = folder.split("/")
        for k in range(1, len(steps) + 1):
            here = "/".join(steps[:k])
            init = ROOT / here / "__init__.py"
            if here != "." and not init.exists():
                init.write_text(f'"""{DOC[here]}"""\n')
                sh("git", "add", str(init))
    for d in sorted(
        (p for p in ROOT.rglob("*") if p.is_dir() and p.name != "__pycache__"), reverse=True
    ):
        if not any(x.name != "__pycache__" for x in d.iterdir()):
            subprocess.run(["rm", "-rf", str(d)])
    return True


if __name__ == "__main__":
    everything, missing, double = names.plan(modules())
    assert not missing and not double, (missing, double)
    only = [a for a in sys.argv[2:] if not a.startswith("-")]
    for room in ROOMS:
        todo, _, _ = everything, None, None
        if not run(room, {a: b for a, b in everything.items() if (ROOT / f"{a}.py").exists()}):
            continue
        bin = CHECKOUT / ".venv/bin"
        subprocess.run([bin / "ruff", "check", "-q", "--select", "I", "--fix", "."], cwd=CHECKOUT)
        subprocess.run([bin / "ruff", "format", "-q", "."], cwd=CHECKOUT)
        subprocess.run(
            [sys.executable, pathlib.Path(__file__).parent / "overflow.py", CHECKOUT], check=True
        )
        subprocess.run(
            [bin / "ruff", "check", "-q", "--fixable", "RUF100,I001", "--fix", "."], cwd=CHECKOUT
        )
        sh("git", "add", "-A")
        if "--commit" in sys.argv:
            first = DOC.get(room, "").split(":")[0].split(".")[0]
            subprocess.run(
                [
                    "git",
                    "commit",
                    "-q",
                    "-m",
                    f"The room {room}: its modules move there, under their new names",
                ],
                cwd=CHECKOUT,
                check=True,
            )
        print(
            "room",
            room,
            sh(
                "git", "diff", "--shortstat", "HEAD~1" if "--commit" in sys.argv else "HEAD"
            ).strip(),
        )
