/* Style and script of the page of coloured tokens. Contract: token_page_parts.h. */
#include "eval/token_page_parts.h"

#include <math.h>

/* --- style ------------------------------------------------------------------------------------------------------ */

static const char g_style[] =
    ":root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d8dde3;--card:#fff;--page:#f6f7f9;"
    "--keep:#c2410c}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--line:#30363d;--card:#14181d;"
    "--page:#0d1014;--keep:#ffa94d}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--ink);font:14px/1.5 system-ui,-apple-system,'Segoe "
    "UI',sans-serif}\n"
    "header{position:sticky;top:0;z-index:1;background:var(--page);border-bottom:1px solid var(--line);"
    "padding:12px 20px 8px}\n"
    "h1{font-size:19px;margin:0;overflow-wrap:anywhere}h2{font-size:15px;margin:0;overflow-wrap:anywhere}\n"
    "p{margin:2px 0 6px}p.sub{color:var(--soft);font-size:12.5px}\n"
    "form:not([hidden]){display:flex;flex-wrap:wrap;gap:6px 18px;align-items:center;margin:6px 0}\n"
    "label{display:inline-flex;gap:6px;align-items:center}input[type=number]{width:6em}input[type=range]{width:16em}\n"
    ".legend{font-size:12.5px;color:var(--soft)}.legend .k{padding:1px 2px}\n"
    "#seen{font:12.5px ui-monospace,Menlo,Consolas,monospace;min-height:1.5em}\n"
    "main{display:grid;grid-auto-flow:column;grid-auto-columns:minmax(270px,1fr);gap:12px;padding:12px 20px 40px;"
    "overflow-x:auto}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px;min-width:0}\n"
    ".text{white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.75}\n"
    "i{font-style:normal}.text i{border-radius:2px;padding:1px 0}\n"
    "i[data-s]{font:11px ui-monospace,Menlo,Consolas,monospace}\n"
    ".k{box-shadow:inset 0 -3px var(--keep)}\n"
    ".text i.at{outline:2px solid var(--ink)}\n";

enum { N_STOPS = 4 };
typedef int stops[N_STOPS][3];
/* From rank 1 to the last rank; the last is nearly the page itself. */
static const stops g_light = {{8, 48, 107}, {33, 113, 181}, {158, 202, 225}, {247, 250, 253}};
static const stops g_dark = {{202, 233, 255}, {86, 172, 232}, {30, 86, 132}, {24, 29, 35}};

static double linear(double channel)
{
    double c = channel / 255;
    return c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
}

/* The colour, and black or white on it, whichever is easier to read (WCAG's contrast). */
static void level_rules(const stops s, kve_tw *w)
{
    for (int i = 0; i < KVE_TOKEN_LEVELS; i++) {
        double at = (double)i * (N_STOPS - 1) / (KVE_TOKEN_LEVELS - 1);
        int k = at >= N_STOPS - 1 ? N_STOPS - 2 : (int)at;
        double rgb[3];
        for (int c = 0; c < 3; c++)
            rgb[c] = round(s[k][c] + (at - k) * (s[k + 1][c] - s[k][c]));
        double luminance = 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
        kve_tw_printf(w, ".r%d{background:#%02x%02x%02x;color:%s}\n", i, (unsigned)rgb[0], (unsigned)rgb[1],
                      (unsigned)rgb[2], luminance > 0.179 ? "#000" : "#fff");
    }
}

void kve_token_page_style(kve_tw *w)
{
    kve_tw_puts(w, g_style);
    level_rules(g_light, w);
    kve_tw_puts(w, "@media(prefers-color-scheme:dark){\n");
    level_rules(g_dark, w);
    kve_tw_puts(w, "}\n");
}

/* --- script ----------------------------------------------------------------------------------------------------- */

/* Texts of tokens and names are only ever read from elements and set as text. */
const char kve_token_page_script[] =
    "'use strict';\n"
    "(() => {\n"
    "const at = id => document.getElementById(id);\n"
    "const bytes = id => Uint8Array.from(atob(at(id).textContent), c => c.charCodeAt(0));\n"
    "const texts = [...document.querySelectorAll('.text')], tokens = texts.map(t => [...t.children]);\n"
    "const names = [...document.querySelectorAll('h2')].map(h => h.textContent);\n"
    "const n = tokens[0].length, heads = +document.querySelector('main').dataset.heads, LEVELS = 32;\n"
    "const ranks = texts.map((_, c) => bytes('ranks' + c)), ids = new DataView(bytes('ids').buffer);\n"
    "const level = new Uint8Array(n + 1);\n"
    "for (let r = 1; r <= n; r++)\n"
    "  level[r] = Math.min(LEVELS - 1, Math.floor(LEVELS * Math.log(r) / Math.log(Math.max(n, 2))));\n"
    "const rank = (c, j) => {\n"
    "  const i = 2 * ((+at('layer').value * heads + +at('head').value) * n + j);\n"
    "  return ranks[c][i] + 256 * ranks[c][i + 1] + 1;\n"
    "};\n"
    "let hovered = -1;\n"
    "function look(c, j) {\n"
    "  const r = rank(c, j);\n"
    "  return 'r' + level[r] + (r <= +at('slider').value ? ' k' : '') + (j === hovered ? ' at' : '');\n"
    "}\n"
    "function draw() {\n"
    "  for (let c = 0; c < texts.length; c++)\n"
    "    for (let j = 0; j < n; j++) {\n"
    "      const name = look(c, j);\n"
    "      if (tokens[c][j].className !== name) tokens[c][j].className = name;\n"
    "    }\n"
    "  tell();\n"
    "}\n"
    "function tell() {\n"
    "  const j = hovered;\n"
    "  at('seen').textContent = j < 0 ? 'Point at a token.' : 'position ' + j + ', id ' + ids.getUint32(4 * j, true) "
    "+\n"
    "    '; rank ' + names.map((name, c) => name + ' ' + rank(c, j)).join(', ');\n"
    "}\n"
    "function hover(j) {\n"
    "  const before = hovered;\n"
    "  hovered = j;\n"
    "  for (const k of [before, j])\n"
    "    for (let c = 0; k >= 0 && c < texts.length; c++) tokens[c][k].className = look(c, k);\n"
    "  tell();\n"
    "}\n"
    "texts.forEach((text, c) => {\n"
    "  tokens[c].forEach((token, j) => { token.place = j; });\n"
    "  text.addEventListener('mouseover', e => {\n"
    "    const token = e.target.closest('i');\n"
    "    if (!token) return;\n"
    "    const j = token.place;\n"
    "    token.title = 'position ' + j + ', id ' + ids.getUint32(4 * j, true) + ', rank ' + rank(c, j);\n"
    "    hover(j);\n"
    "  });\n"
    "});\n"
    "function setBudget(text) {\n"
    "  const b = Math.min(n, Math.max(1, Math.round(+text) || 1));\n"
    "  at('slider').value = b;\n"
    "  if (+at('budget').value !== b) at('budget').value = b;\n"
    "  draw();\n"
    "}\n"
    "at('slider').addEventListener('input', e => setBudget(e.target.value));\n"
    "at('budget').addEventListener('change', e => setBudget(e.target.value));\n"
    "at('layer').addEventListener('change', draw);\n"
    "at('head').addEventListener('change', draw);\n"
    "at('controls').addEventListener('submit', e => e.preventDefault());\n"
    "at('controls').hidden = at('seen').hidden = false;\n"
    "draw();\n"
    "})();\n";
