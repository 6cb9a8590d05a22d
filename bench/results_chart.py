# SPDX-License-Identifier: Apache-2.0
"""A chart of attention records as SVG text: for each head dim and mask a panel, in it for each number of tokens a bar
per kernel, as high as it is faster than the baseline, whose speed is the line at 1."""

from xml.sax.saxutils import escape

COLOURS = ("#1f6f8b", "#e07a1f", "#4d9a4d", "#8e5ea2", "#b8483f", "#7a7a7a")
BAR, GAP, PLOT_HEIGHT, MARGIN = 14, 18, 150, 44  # pixels


def kernels_of(group: list) -> list:
    """Recipes with a kernel's record, in the records' order."""
    return list(dict.fromkeys(r["recipe"] for r in group if r["what"] == "kernel" and r["recipe"] != r["baseline"]))


class Panel:
    def __init__(self, records: list, recipes: list, top: float):
        self.ratios = {(r["q_len"], r["recipe"]): r["ratio"] for r in records}
        self.tokens = sorted({r["q_len"] for r in records})
        self.recipes, self.top = recipes, top
        self.slot = BAR * len(recipes) + GAP  # pixels of one number of tokens
        self.width = MARGIN + self.slot * len(self.tokens) + GAP

    def y(self, ratio: float) -> float:
        return PLOT_HEIGHT * (1 - ratio / self.top)

    def draw(self, title: str) -> list:
        right = self.width - GAP
        lines = [f'<text x="{MARGIN}" y="-8" font-weight="bold">{escape(title)}</text>']
        step = 0.5 if self.top <= 4 else 2
        for tick in range(int(self.top / step) + 1):
            y = self.y(tick * step)
            strong = ' stroke-width="2"' if tick * step == 1 else ""
            lines.append(f'<line x1="{MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#bbb"{strong}/>')
            lines.append(f'<text x="{MARGIN - 5}" y="{y + 4:.1f}" text-anchor="end">{tick * step:g}</text>')
        for group, tokens in enumerate(self.tokens):
            left = MARGIN + GAP / 2 + group * self.slot
            for bar, recipe in enumerate(self.recipes):
                ratio = self.ratios.get((tokens, recipe))
                if ratio is None:
                    continue
                y = self.y(ratio)
                at = f'x="{left + bar * BAR:.1f}" y="{y:.1f}" width="{BAR - 1}" height="{PLOT_HEIGHT - y:.1f}"'
                title = f"<title>{escape(recipe)}, {tokens} tokens: {ratio:.2f}</title>"
                lines.append(f'<rect {at} fill="{COLOURS[bar % len(COLOURS)]}">{title}</rect>')
            middle = left + (self.slot - GAP) / 2
            lines.append(f'<text x="{middle:.1f}" y="{PLOT_HEIGHT + 15}" text-anchor="middle">{tokens}</text>')
        return lines


def chart(group: list, machine: str, date: str) -> str:
    """`group`: attention records of one machine and protocol."""
    recipes = kernels_of(group)
    kernels = [r for r in group if r["what"] == "kernel" and r["recipe"] in recipes]
    top = max([1.0, *(r["ratio"] for r in kernels)]) * 1.08
    dims, masks = sorted({r["head_dim"] for r in kernels}), sorted({r["causal"] for r in kernels})
    panels = {
        (dim, mask): Panel([r for r in kernels if (r["head_dim"], r["causal"]) == (dim, mask)], recipes, top)
        for dim in dims
        for mask in masks
    }
    column = max(panel.width for panel in panels.values())
    row, head = PLOT_HEIGHT + 56, 54
    width, height = max(column * len(masks), 24 + 150 * len(recipes)), head + row * len(dims)
    baseline = group[0]["baseline"]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="17">{escape(f"{machine}, {date}: speed of the kernel, 1 = {baseline}, by tokens")}</text>',
    ]
    for i, recipe in enumerate(recipes):
        lines.append(f'<rect x="{12 + 150 * i}" y="25" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        lines.append(f'<text x="{26 + 150 * i}" y="34">{escape(recipe)}</text>')
    for (dim, mask), panel in panels.items():
        x, y = masks.index(mask) * column, head + 18 + dims.index(dim) * row
        title = f"D {dim}, {'causal' if mask else 'full'}"
        lines += [f'<g transform="translate({x},{y})">', *panel.draw(title), "</g>"]
    return "\n".join([*lines, "</svg>", ""])
