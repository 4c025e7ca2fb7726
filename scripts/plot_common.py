"""Styles, axes, labels and titles that the plots of plot.py share."""
import math
import os

from plot_records import fail


class Pyplot:
    """matplotlib.pyplot, imported with its first use: help, checks of arguments and --fields do without it."""

    def __getattr__(self, name):
        try:
            import matplotlib
        except ImportError:
            fail("matplotlib", "expected the package, found none",
                 "python3 -m pip install matplotlib, or apt-get install python3-matplotlib", status=1)
        matplotlib.use("Agg")
        from matplotlib import pyplot
        pyplot.rcParams.update({"font.size": 9, "savefig.dpi": 130, "svg.hashsalt": "plot"})
        self.__dict__.update(vars(pyplot))
        return getattr(pyplot, name)


plt = Pyplot()

# Colours of Okabe and Ito, which colour-blind readers can tell apart. Series differ in marker and line too.
BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888", "#000000")
COLORS = [BLUE, RED, GREEN, PINK, ORANGE, SKY, GREY]
MARKERS = ["o", "s", "^", "D", "v", "p", "X", "h", "<"]
LINES = ["-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1))]
POINT = dict(markersize=6.5, markeredgecolor="white", markeredgewidth=0.6, linewidth=1.1)
BARS = dict(elinewidth=0.8, capsize=2)


def series_style(i, *parts):
    """Colour, marker and line of the i-th series, or only those parts."""
    style = dict(color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)], linestyle=LINES[i % len(LINES)])
    return {part: style[part] for part in parts or style}


def handle(style, label, **more):
    return plt.Line2D([], [], label=label, **{"markersize": 7, **style, **more})


def legend_outside(figure, where, **how):
    """The legend next to the axes or, with where = "lower center", below them. Debian 12's matplotlib, 3.6,
    has no such place of its own."""
    how = dict(frameon=False, handlelength=3.2, **how)
    if tuple(map(int, plt.matplotlib.__version__.split(".")[:2])) >= (3, 7):
        figure.legend(loc=f"outside {where}", **how)
        return
    loc, at = {"right upper": ("upper left", (1, 1)), "right center": ("center left", (1, 0.5)),
               "lower center": ("upper center", (0.5, 0))}[where]
    figure.legend(loc=loc, bbox_to_anchor=at, **how)
    plt.rcParams["savefig.bbox"] = "tight"


def tokens_label(value, _=None):
    return f"{value / 1024:g}Ki" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def number_label(value, _=None):
    return f"{value:,.6g}"


def set_scale(axis, *scale, **how):
    getattr(axis.axes, f"set_{axis.axis_name}scale")(*scale, **how)


def binary_axis(axis, values, label=tokens_label):
    """A logarithmic axis with its ticks at the values, where these are few and apart; else at powers of two, eight
    at most. The last value has a tick, others if its label leaves room for theirs."""
    set_scale(axis, "log", base=2)
    ticks = sorted(set(values))
    low, high = ticks[0], ticks[-1]
    if len(ticks) > 8 or any(b < 1.4 * a for a, b in zip(ticks, ticks[1:])):
        ticks = [2.0 ** int(low).bit_length() / 2]
        while 2 * ticks[-1] <= high * 1.01:
            ticks.append(2 * ticks[-1])
        ticks = ticks[::-(-len(ticks) // 8)]
    shown, apart = [], 0.99 * (high / low) ** (1 / 7)
    for tick in reversed(ticks):
        if not shown or shown[-1] >= apart * tick:
            shown.append(tick)
    axis.set_ticks(shown)
    axis.set_major_formatter(plt.FuncFormatter(label))
    axis.set_minor_formatter(plt.NullFormatter())


def log_axis(axis, values):
    """A logarithmic axis with plain numbers at 1, 2 and 5 of each decade, at round ones within less than a decade."""
    set_scale(axis, "log")
    decades = math.log10(max(values) / min(values))
    subs = (1, 2, 5) if decades < 3.5 else (1,)
    axis.set_major_locator(plt.LogLocator(subs=subs, numticks=12) if decades > 0.8
                           else plt.MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(plt.FuncFormatter(number_label))
    axis.set_minor_locator(plt.NullLocator())


def grid(ax):
    ax.grid(alpha=0.25, linewidth=0.5)


def bars_of(points):
    """yerr of points (x, y, low, high)."""
    return [[max(0, y - low) for _, y, low, _ in points], [max(0, high - y) for _, y, _, high in points]]


def dodge(artists, points):
    """Moves artists sideways by points of the page; their data stay at the true x."""
    for artist in artists:
        shift = plt.matplotlib.transforms.ScaledTranslation(points / 72, 0, artist.get_figure().dpi_scale_trans)
        artist.set_transform(artist.get_transform() + shift)


def dodge_by(artists, factor):
    """Moves artists of an axis logarithmic to base 2 sideways by a factor of x; their data stay at the true x."""
    shift = plt.matplotlib.transforms.Affine2D().translate(math.log2(factor), 0)
    for artist in artists:
        ax = artist.axes
        artist.set_transform(ax.transScale + shift + ax.transLimits + ax.transAxes)


def label_point(ax, xy, text, **style):
    """A text next to a point; finished figures have it where it covers no other and no marker."""
    made = ax.annotate(text, xy, xytext=(5, 0), textcoords="offset points", ha="left", va="center",
                       **{"fontsize": 7.5, "color": "#444444", **style})
    made.set_in_layout(False)
    ax.labels_to_place = getattr(ax, "labels_to_place", []) + [made]


SIDES = [(1, 0, "left", "center"), (-1, 0, "right", "center"), (0, 1, "center", "bottom"), (0, -1, "center", "top"),
         (1, 1, "left", "bottom"), (1, -1, "left", "top"), (-1, 1, "right", "bottom"), (-1, -1, "right", "top")]


def common_area(a, b):
    width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(0, width) * max(0, height)


def boxes_along(places):
    """Small boxes along a line on the page."""
    for (x0, y0), (x1, y1) in zip(places, places[1:]):
        n = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
        at = ((x0 + (x1 - x0) * i / n, y0 + (y1 - y0) * i / n) for i in range(n))
        yield from (plt.matplotlib.transforms.Bbox.from_extents(x - 1, y - 1, x + 1, y + 1) for x, y in at)


def obstacles(ax, scale):
    """Boxes around the markers of an axes, and small ones along its lines and bars; `scale` pixels are a point."""
    boxes = []
    for line in ax.lines:
        places = line.get_transform().transform(line.get_xydata())
        half = line.get_markersize() * scale / 2
        boxes += [plt.matplotlib.transforms.Bbox.from_extents(x - half, y - half, x + half, y + half)
                  for x, y in places if line.get_marker() not in ("None", None, "")]
        boxes += boxes_along(places) if line.get_linestyle() != "None" else []
    for bars in (c for c in ax.collections if hasattr(c, "get_segments")):
        for segment in bars.get_segments():
            boxes += boxes_along(bars.get_transform().transform(segment))
    return boxes


def place_labels(figure):
    """Puts each label on the side of its point that leaves most free."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    for ax in (ax for ax in figure.axes if hasattr(ax, "labels_to_place")):
        taken = obstacles(ax, figure.dpi / 72)
        for label in ax.labels_to_place:
            def put(choice):
                distance, (dx, dy, ha, va) = choice
                label.set_position((dx * distance, dy * distance))
                label.set(ha=ha, va=va)
                return label.get_window_extent(renderer).padded(2)

            def cost(choice):
                box = put(choice)
                outside = box.width * box.height - common_area(box, ax.bbox)
                return outside + sum(common_area(box, other) for other in taken)

            taken.append(put(min([(d, side) for d in (6, 9, 13) for side in SIDES], key=cost)))


def title(figure, text, facts, records, notes=()):
    """The title, and below the figure the commits that its records come from."""
    figure.suptitle(f"{text}\n{', '.join(facts)}", fontsize=10, x=0.01, ha="left")
    commits = sorted({r["git_commit"][:12] for r in records if "git_commit" in r})
    figure.supxlabel("; ".join([*notes, *(["commit " + ", ".join(commits)] if commits else [])]), fontsize=7.5,
                     color="#444444", x=0.01, ha="left")


def save(figure, path):
    place_labels(figure)
    ending = os.path.splitext(path)[1][1:]
    try:  # no date: equal records give equal files
        figure.savefig(path, metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending))
    except OSError as e:
        fail(path, e.strerror)
    print(f"wrote {path}")
