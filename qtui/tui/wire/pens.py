"""How a cell is drawn (ECMA-48 SGR and links), and the shortest way from one such to another."""

from __future__ import annotations

from typing import Final

# Attributes with a code of their own, and the code that ends each: ECMA-48 8.3.117, and 53 for a
# line above. Several share one end.
_ENDS: Final = {
    "1": "22",
    "2": "22",
    "3": "23",
    "4": "24",
    "5": "25",
    "6": "25",
    "7": "27",
    "8": "28",
    "9": "29",
    "21": "24",
    "51": "54",
    "52": "54",
    "53": "55",
}
_ENDING: Final = frozenset(_ENDS.values())
#: Attributes that are not seen where nothing is written: bold, dim, italic, blinking, concealed.
_OF_LETTERS: Final = frozenset(("1", "2", "3", "5", "6", "8"))
_FOREGROUNDS: Final = frozenset(str(n) for n in (*range(30, 38), *range(90, 98)))
_BACKGROUNDS: Final = frozenset(str(n) for n in (*range(40, 48), *range(100, 108)))

#: Pens that are held. Beyond it all are forgotten: then a few cells are drawn again.
MOST_PENS: Final = 20_000

_Look = tuple[frozenset[str], str, str, str]


class Pen:
    """How a cell is drawn. There is one object of a kind: pens are compared by identity.

    attributes: codes that are on; one that is not known here is kept as it came.
    fore, back: the codes of the colours, such as "31" or "38;2;1;2;3"; "" is the default.
    link: what follows `OSC 8 ;` of a hyperlink; "" is none.
    """

    __slots__ = ("attributes", "back", "fore", "ground", "known", "link", "plain", "turned")

    _all: Final[dict[_Look, Pen]] = {}

    def __init__(self, attributes: frozenset[str], fore: str, back: str, link: str) -> None:
        self.attributes, self.fore, self.back, self.link = attributes, fore, back, link
        self.known: dict[str, Pen] = {}
        """What `after` has found: "[" and codes -> the pen."""
        self.plain = not link and attributes <= _OF_LETTERS
        """Whether a blank shows only the background."""
        self.ground = (
            self
            if not self.plain or not (attributes or fore)
            else Pen.of(frozenset(), "", back, "")
        )
        """The pen of all blanks that look like one with this pen."""
        self.turned: Pen | None = None
        """The pen with exchanged colours, of one of the two that have no more than colours."""
        extended = (fore[:3], back[:3]) == ("38;", "48;") and not (attributes or link)
        if extended and fore[3:] < back[3:]:
            self.turned = Pen.of(attributes, f"38;{back[3:]}", f"48;{fore[3:]}", "")

    @classmethod
    def of(cls, attributes: frozenset[str], fore: str, back: str, link: str) -> Pen:
        look = attributes, fore, back, link
        pen = cls._all.get(look)
        if pen is None:
            if len(cls._all) >= MOST_PENS:
                for pen in cls._all.values():
                    pen.known.clear()
                cls._all.clear()
            pen = cls._all[look] = cls(*look)
        return pen

    def after(self, codes: str) -> Pen:
        """The pen once the terminal got SGR with these codes, such as "1;38;5;7"."""
        pen = self.known.get(f"[{codes}")
        if pen is None:
            pen = self.known[f"[{codes}"] = self._read(codes)
        return pen

    def linked(self, link: str) -> Pen:
        """The same with another link."""
        return Pen.of(self.attributes, self.fore, self.back, link)

    def over(self, back: str) -> Pen:
        """A pen for blanks on this background that is near this one."""
        return Pen.of(self.attributes & _OF_LETTERS, self.fore, back, "")

    def _read(self, codes: str) -> Pen:
        attributes, fore, back = set(self.attributes), self.fore, self.back
        parts = iter(codes.split(";"))
        for code in parts:
            if code in ("38", "48", "58"):
                kind = next(parts, "")
                rest = [next(parts, "") for _ in range({"2": 3, "5": 1}.get(kind, 0))]
                color = ";".join((code, kind, *rest))
                if code == "38":
                    fore = color
                elif code == "48":
                    back = color
                else:
                    attributes.add(color)
            elif code.strip("0") == "":
                attributes, fore, back = set(), "", ""
            elif code in _ENDING:
                attributes -= {one for one in attributes if _ENDS.get(one) == code}
            elif code in _FOREGROUNDS or code == "39":
                fore = "" if code == "39" else code
            elif code in _BACKGROUNDS or code == "49":
                back = "" if code == "49" else code
            else:
                attributes -= {"4", "21"} if code in ("4", "21") else set()  # one line or two
                attributes.add(code)
        return Pen.of(frozenset(attributes), fore, back, self.link)

    def to(self, other: Pen) -> str:
        """The shortest escapes after which the terminal draws as `other`, where it drew as this."""
        link = "" if other.link == self.link else f"\x1b]8;{other.link or ';'}\x1b\\"
        if self.attributes == other.attributes and other.fore and other.back:
            if self.fore == other.fore:
                return link if self.back == other.back else f"{link}\x1b[{other.back}m"
            if self.back == other.back:
                return f"{link}\x1b[{other.fore}m"
            return f"{link}\x1b[{other.fore};{other.back}m"
        codes = [*sorted(other.attributes), other.fore, other.back]
        anew = ";".join(code for code in ("0", *codes) if code)
        changed = self._changed(other)
        if changed == "":
            return link
        if changed is None or len(anew) < len(changed):
            changed = "" if anew == "0" else anew
        return f"{link}\x1b[{changed}m"

    def _changed(self, other: Pen) -> str | None:
        """What differs, as codes; None where an attribute has no end that is known here."""
        gone = self.attributes - other.attributes
        if not gone <= _ENDS.keys():
            return None
        ends = {_ENDS[code] for code in gone}
        begun = {
            code
            for code in other.attributes
            if code not in self.attributes or _ENDS.get(code) in ends
        }
        codes = [*sorted(ends), *sorted(begun)]
        if self.fore != other.fore:
            codes.append(other.fore or "39")
        if self.back != other.back:
            codes.append(other.back or "49")
        return ";".join(codes)


PLAIN: Final = Pen.of(frozenset(), "", "", "")
