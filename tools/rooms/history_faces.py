# ruff: noqa
# mypy: ignore-errors
import pathlib, re, subprocess

V = "src/vedette/"


def rd(p):
    return pathlib.Path(p).read_text()


def wr(p, s):
    pathlib.Path(p).write_text(s)


import ast

p = V + "ledger/history/__init__.py"
tree = ast.parse(rd(p))
HOME = {}
for n in tree.body:
    if isinstance(n, ast.ImportFrom) and n.module.startswith("vedette.ledger.history."):
        for a in n.names:
            HOME[a.asname or a.name] = (n.module.split(".")[-1], a.name)
doc = ast.get_docstring(tree)
wr(p, f'"""{doc}\n"""\n')
files = subprocess.check_output(
    "grep -rlE 'from vedette.ledger.history import' src tests tools agents", shell=True, text=True
).split()
mods = {x.stem for x in pathlib.Path(V + "timeline").glob("*.py")}
for f in files:
    s = rd(f)

    def one(m):
        ind = m[1]
        names = [x.strip() for x in m[2].strip("()").replace("\n", " ").split(",") if x.strip()]
        by = {}
        rest = []
        for n in names:
            real, _, as_ = n.partition(" as ")
            if real in HOME:
                by.setdefault(HOME[real][0], []).append(n)
            else:
                rest.append(n)
        out = [f"{ind}from vedette.ledger.history import {', '.join(rest)}"] if rest else []
        out += [
            f"{ind}from vedette.ledger.history.{m_} import {', '.join(ns)}" for m_, ns in by.items()
        ]
        return "\n".join(out)

    wr(f, re.sub(r"^([ ]*)from vedette\.timeline import (\([^)]*\)|[^\n(]*)", one, s, flags=re.M))
print(len(files), "files")
