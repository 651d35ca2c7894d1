"""The style of a page: calm and dense, light and dark, read without colour as well."""

STYLE = """
:root{color-scheme:light dark;--panel:#fff;--ground:#f4f6f5;--ink:#13201b;--second:#43514b;
--rule:#cbd2ce;--good:#17683a;--good-t:#dff1e5;--wait:#7f5200;--wait-t:#fbebc8;--bad:#a8221b;
--bad-t:#fbe3e0;--odd:#643a99;--odd-t:#eee5f8;--plain:#4e5b55;--plain-t:#e6eae8}
@media (prefers-color-scheme:dark){:root{--panel:#141d1a;--ground:#0d1412;--ink:#e7edea;
--second:#b3bfb9;--rule:#2c3833;--good:#74c896;--good-t:#12301f;--wait:#e8bc62;--wait-t:#352809;
--bad:#ff958a;--bad-t:#3b1714;--odd:#c9acf4;--odd-t:#2a1d3d;--plain:#aebab4;--plain-t:#222c28}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:14px/20px system-ui,sans-serif}
header,main{max-width:72rem;margin:0 auto;padding:16px}
h1{font-size:20px;line-height:28px;margin:0;overflow-wrap:anywhere}
h2{font-size:16px;line-height:24px;margin:0 0 8px;overflow-wrap:anywhere}
h3{font-size:14px;margin:16px 0 4px}h4{font-size:14px;margin:12px 0 4px;font-weight:560}
section{background:var(--panel);border:1px solid var(--rule);border-radius:6px;padding:16px;
margin:0 0 16px}
blockquote{margin:0;padding-left:12px;border-left:4px solid var(--odd)}
article{border-top:1px solid var(--rule);margin-top:16px}
small,caption,dt,header p{color:var(--second)}
dl{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;gap:2px 16px;margin:4px 0}
dd{margin:0;overflow-wrap:anywhere}
code,pre,td bdi{font-family:ui-monospace,monospace;font-size:13px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--ground);padding:8px;margin:4px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin:8px 0;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:4px 0}
th,td{text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid var(--rule)}
td{overflow-wrap:anywhere;max-width:32rem}
.tag{display:inline-block;padding:0 6px;border-radius:4px;font-size:12px;line-height:18px;
font-weight:560;border:1px solid transparent;white-space:nowrap}
.good{color:var(--good);background:var(--good-t)}.wait{color:var(--wait);background:var(--wait-t)}
.bad{color:var(--bad);background:var(--bad-t)}.odd{color:var(--odd);background:var(--odd-t)}
.plain{color:var(--plain);background:var(--plain-t)}
@media (forced-colors:active){.tag{border-color:CanvasText}}
@media (max-width:40rem){dl{grid-template-columns:1fr}dt{margin-top:4px}
dd dl{grid-template-columns:minmax(5rem,max-content) 1fr;gap:2px 8px;padding-left:8px;
border-left:2px solid var(--rule)}dd dt{margin-top:0}}
@media print{body{background:#fff}section{break-inside:auto;border:0}}
"""
