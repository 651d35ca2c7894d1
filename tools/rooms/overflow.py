# ruff: noqa
# mypy: ignore-errors
"""overflow.py CHECKOUT: prose in comments and docstrings that a longer name made too wide goes on in the next line."""

import ast, pathlib, re, subprocess, sys


def mend(checkout):
    checkout = pathlib.Path(checkout)
    out = subprocess.run(
        [
            checkout / ".venv/bin/ruff",
            "check",
            "--select",
            "E501",
            "--output-format",
            "concise",
            ".",
        ],
        cwd=checkout,
        capture_output=True,
        text=True,
    ).stdout
    spots = {}
    for m in re.finditer(r"^(\S+?):(\d+):\d+: E501", out, re.M):
        spots.setdefault(m[1], []).append(int(m[2]))
    for f, lines_ in spots.items():
        if not f.endswith(".py"):
            continue
        p = checkout / f
        text_ = p.read_text()
        lines = text_.split("\n")
        prose = set()
        try:
            tree = ast.parse(text_)
        except SyntaxError:
            continue
        for n in ast.walk(tree):
            if (
                isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                and n.body
                and isinstance(n.body[0], ast.Expr)
                and isinstance(n.body[0].value, ast.Constant)
                and isinstance(n.body[0].value.value, str)
            ):
                prose.update(range(n.body[0].lineno, n.body[0].end_lineno + 1))
            elif isinstance(n, ast.ClassDef):
                pass
        for n in ast.walk(tree):
            if (
                isinstance(n, ast.Expr)
                and isinstance(n.value, ast.Constant)
                and isinstance(n.value.value, str)
            ):
                prose.update(range(n.lineno, n.end_lineno + 1))
        for n in sorted(lines_, reverse=True):
            i = n - 1
            if n not in prose and not lines[i].lstrip().startswith(("# ", "-- ")):
                continue
            for _ in range(30):
                line = lines[i]
                if len(line) <= 100:
                    break
                ind = re.match(r"\s*", line)[0]
                body = line[len(ind) :]
                if re.match(r"""[rbf]?["']""", body) and not body.startswith('"' * 3):
                    break
                mark = "# " if body.startswith("# ") else "-- " if body.startswith("-- ") else ""
                close = ""
                if body.endswith('"""') and not mark:
                    close = '"""'
                    body = body[:-3]
                text = body[len(mark) :]
                opened = text.startswith('"""')
                words = text.split(" ")
                keep, rest = [], words[:]
                width = len(ind) + len(mark)
                hang = re.match(r"([*-] )", text)
                while rest and width + len(" ".join(keep + [rest[0]])) <= 100:
                    keep.append(rest.pop(0))
                if not keep or not rest:
                    break
                lines[i] = ind + mark + " ".join(keep)
                sub = ind + ("  " if hang else "")
                if close:  # closing quotes go on a line of their own
                    lines[i + 1 : i + 1] = [sub + " ".join(rest), ind + close]
                    break
                nxt = lines[i + 1] if i + 1 < len(lines) else ""
                nind = re.match(r"\s*", nxt)[0]
                nbody = nxt[len(nind) :]
                if (
                    nbody
                    and not nbody.startswith('"""')
                    and (nbody.startswith(mark) if mark else True)
                    and nbody != '"""'
                    and not (opened and not nbody)
                ):
                    lines[i + 1] = nind + mark + " ".join(rest) + " " + nbody[len(mark) :]
                else:
                    lines[i + 1 : i + 1] = [sub + mark + " ".join(rest)]
                i += 1
        p.write_text("\n".join(lines))


mend(sys.argv[1])
