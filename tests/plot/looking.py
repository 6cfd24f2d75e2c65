"""What a reader would see in a picture: letters that are cut off, too small, or on top of each other."""

from matplotlib.figure import Figure
from matplotlib.text import Text


def shown_texts(figure: Figure) -> list[tuple[str, Text]]:
    """Every text that is drawn, after the layout is settled."""
    figure.draw_without_rendering()
    drawn = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = figure.findobj(lambda artist: hasattr(artist, "get_ticklabels"))
    hidden = {
        id(label)
        for axis in boxes
        if hasattr(axis, "majorTicks")
        for tick in [*axis.majorTicks, *axis.minorTicks]
        if not axis.get_visible() or not axis.axes.axison or tick not in axis._update_ticks()
        for label in (tick.label1, tick.label2)
    }
    return [(text.get_text(), text) for text in drawn if id(text) not in hidden]


def clipped(figure: Figure) -> list[str]:
    """Texts that do not lie within the picture, to half a point."""
    whole = figure.bbox
    boxes = [(name, text.get_window_extent()) for name, text in shown_texts(figure)]
    slack = figure.dpi / 144
    return [
        name
        for name, box in boxes
        if box.x0 < whole.x0 - slack
        or box.y0 < whole.y0 - slack
        or box.x1 > whole.x1 + slack
        or box.y1 > whole.y1 + slack
    ]


def without_letters(figure: Figure) -> list[str]:
    """Texts in which a sign stands for a letter that the font lacks."""
    return [name for name, _ in shown_texts(figure) if "\N{REPLACEMENT CHARACTER}" in name]


def smallest(figure: Figure) -> float:
    """Points of the smallest letters."""
    return min(text.get_fontsize() for _, text in shown_texts(figure))


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of which one covers a good part of the other."""
    boxes = [(name, text.get_window_extent()) for name, text in shown_texts(figure)]
    pairs = []
    for number, (name, box) in enumerate(boxes):
        for other, second in boxes[number + 1 :]:
            wide = min(box.x1, second.x1) - max(box.x0, second.x0)
            high = min(box.y1, second.y1) - max(box.y0, second.y0)
            if wide > 0 and high > 0 and wide * high > 0.2 * min(box.width * box.height, second.width * second.height):
                pairs.append((name, other))
    return pairs


def unread(figure: Figure) -> dict[str, list]:
    """What a reader would stumble over, by kind; nothing where all is well."""
    turned = {text.get_text() for text in figure.findobj(Text) if text.get_rotation() % 90}
    found = {
        "clipped": clipped(figure),
        "without letters": without_letters(figure),
        # The boxes of labels that are turned overlap where the letters do not.
        "overlapping": [pair for pair in overlapping(figure) if not {*pair} <= turned],
        "small": [smallest(figure)] if smallest(figure) < 7 else [],
        "high": [figure.get_size_inches()[1]] if figure.get_size_inches()[1] > 9.2 else [],
    }
    return {kind: texts for kind, texts in found.items() if texts}
