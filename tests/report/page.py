"""An independent reading of a page: its elements by tag, with their attributes and text, and whether they nest."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}
SHAPES = {"rect", "path", "circle", "polyline"}


class Element:
    def __init__(self, tag, attributes, parent):
        self.tag, self.attributes, self.parent = tag, dict(attributes), parent
        self.children, self.texts = [], []

    def all(self, tag=None, **attributes):
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            fits = all(
                value in child.attributes.get(n, "").split() or child.attributes.get(n) == value
                for n, value in wanted.items()
            )
            if (tag is None or child.tag == tag) and fits:
                found.append(child)
            found += child.all(tag, **attributes)
        return found

    @property
    def text(self):
        """All text in the order of the page."""
        return " ".join(" ".join(t if isinstance(t, str) else t.text for t in self.texts).split())


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.open = Element("root", (), None)

    def handle_starttag(self, tag, attributes):
        element = Element(tag, attributes, self.open)
        self.open.children.append(element)
        self.open.texts.append(element)
        if tag not in VOID:
            self.open = element

    def handle_startendtag(self, tag, attributes):
        assert tag in SHAPES, tag
        self.open.children.append(Element(tag, attributes, self.open))

    def handle_endtag(self, tag):
        assert self.open.tag == tag, f"</{tag}> closes <{self.open.tag}>"
        self.open = self.open.parent

    def handle_data(self, data):
        self.open.texts.append(data)


def read(text):
    """The page as a tree of elements; raises where elements do not nest or stay open."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open is reader.root, f"<{reader.open.tag}> stays open"
    return reader.root


def rows(table):
    """The cells of a table, head first."""
    return [[cell.text for cell in row.children] for row in table.all("tr")]
