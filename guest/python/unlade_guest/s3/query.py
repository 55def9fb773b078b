"""JMESPath as far as S3's lists need it: fields, indices, projections, filters, lists and hashes.

`compile` gives something with `search(value)`. Where the real library can be imported it is used
for what callers ask; this one is enough for tables, and for what people write about listings.
"""

LITERALS = {"true": True, "false": False, "null": None}
STEPS_MAX = 256


class QueryError(ValueError):
    """The expression is not understood here: the function may bring the package `jmespath`."""


def _tokens(text):
    out, at = [], 0
    while at < len(text):
        letter = text[at]
        if letter.isspace():
            at += 1
            continue
        two = text[at : at + 2]
        if two in ("[]", "[?", "||", "&&", "==", "!=", "<=", ">="):
            out.append((two, None))
            at += 2
        elif letter in "[]{}().,:*|<>!@&":
            out.append((letter, None))
            at += 1
        elif letter in "'`\"":
            end = text.find(letter, at + 1)
            if end < 0:
                raise QueryError("unclosed %s in %r" % (letter, text))
            out.append((letter, text[at + 1 : end]))
            at = end + 1
        elif letter == "-" or letter.isdigit():
            end = at + 1
            while end < len(text) and text[end].isdigit():
                end += 1
            out.append(("number", int(text[at:end])))
            at = end
        elif letter.isalpha() or letter == "_":
            end = at + 1
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            out.append(("name", text[at:end]))
            at = end
        else:
            raise QueryError("%r in %r" % (letter, text))
    if len(out) > STEPS_MAX:
        raise QueryError("the expression is too long")
    return out + [("end", None)]


class _Parser:
    """Turns tokens into functions of a value. Projections are marked by their second half."""

    def __init__(self, text):
        self.tokens = _tokens(text)
        self.at = 0
        self.text = text

    def peek(self):
        return self.tokens[self.at][0]

    def take(self, kind=None):
        found = self.tokens[self.at]
        if kind is not None and found[0] != kind:
            raise QueryError("%r: expected %s before %s" % (self.text, kind, found[0]))
        self.at += 1
        return found

    def pipe(self):
        left = self.alternative()
        while self.peek() == "|":
            self.take()
            left = _then(left, self.alternative())
        return left

    def alternative(self):
        left = self.both()
        while self.peek() == "||":
            self.take()
            left = _either(left, self.both())
        return left

    def both(self):
        left = self.comparison()
        while self.peek() == "&&":
            self.take()
            left = _both(left, self.comparison())
        return left

    def comparison(self):
        if self.peek() == "!":
            self.take()
            inner = self.comparison()
            return lambda value: not _true(inner(value))
        left = self.path()
        if self.peek() in COMPARISONS:
            return _compare(COMPARISONS[self.take()[0]], left, self.path())
        return left

    def path(self):
        return self.rest(self.first())

    def first(self):
        kind, value = self.take()
        if kind == "name":
            return self.call(value) if self.peek() == "(" else _field(value)
        if kind == '"':
            return _field(value)
        if kind == "'":
            return lambda _: value
        if kind == "`":
            from ..text import decode

            literal = decode(value.strip())
            return lambda _: literal
        if kind == "@":
            return lambda found: found
        if kind == "*":
            return self.project(lambda value: list(value.values()) if _is(value, dict) else None)
        if kind == "(":
            inner = self.pipe()
            self.take(")")
            return inner
        if kind == "{":
            return self.hash()
        if kind in ("[", "[]", "[?"):
            self.at -= 1
            return self.bracket(lambda value: value)
        raise QueryError("%r: %s is not expected" % (self.text, kind))

    def rest(self, left):
        while True:
            kind = self.peek()
            if kind == ".":
                self.take()
                left = _then(left, self.member())
            elif kind in ("[", "[]", "[?"):
                left = self.bracket(left)
            else:
                return left

    def member(self):
        if self.peek() == "[":
            self.take()
            return self.list()
        return self.first()

    def bracket(self, left):
        kind, _ = self.take()
        if kind == "[]":
            return self.project(_then(left, _flat))
        if kind == "[?":
            condition = self.pipe()
            self.take("]")
            return self.project(_then(left, _filter(condition)))
        if self.peek() == "*":
            self.take()
            self.take("]")
            return self.project(_then(left, lambda value: value if _is(value, list) else None))
        if self.peek() == "number":
            index = self.take()[1]
            self.take("]")
            return _then(left, _index(index))
        return _then(left, self.list())

    def project(self, source):
        """Everything behind a projection is done to each of its items, nulls left out."""
        if self.peek() == "[]":
            self.take()
            return self.project(_then(self.mapped(source, lambda item: item), _flat))
        each = self.rest(lambda item: item)
        return self.mapped(source, each)

    @staticmethod
    def mapped(source, each):
        def search(value):
            items = source(value)
            if items is None:
                return None
            return [found for found in map(each, items) if found is not None]

        return search

    def list(self):
        parts = [self.pipe()]
        while self.peek() == ",":
            self.take()
            parts.append(self.pipe())
        self.take("]")
        return lambda value: None if value is None else [part(value) for part in parts]

    def hash(self):
        parts = []
        while True:
            name = self.take()[1]
            self.take(":")
            parts.append((name, self.pipe()))
            if self.take()[0] == "}":
                break
        return lambda value: None if value is None else {name: part(value) for name, part in parts}

    def call(self, name):
        if name not in FUNCTIONS:
            raise QueryError("%r: no function %s here" % (self.text, name))
        self.take("(")
        parts = []
        while self.peek() != ")":
            parts.append(self.pipe())
            if self.peek() == ",":
                self.take()
        self.take(")")
        function = FUNCTIONS[name]
        return lambda value: function(*[part(value) for part in parts])


def _is(value, kind):
    return isinstance(value, kind)


def _true(value):
    return value is not None and value is not False and value not in ("", [], {})


def _field(name):
    return lambda value: value.get(name) if _is(value, dict) else None


def _index(index):
    def search(value):
        if not _is(value, list) or not -len(value) <= index < len(value):
            return None
        return value[index]

    return search


def _flat(value):
    if not _is(value, list):
        return None
    out = []
    for item in value:
        if _is(item, list):
            out += item
        else:
            out.append(item)
    return out


def _filter(condition):
    def search(value):
        return [item for item in value if _true(condition(item))] if _is(value, list) else None

    return search


def _then(left, right):
    return lambda value: right(left(value))


def _either(left, right):
    def search(value):
        found = left(value)
        return found if _true(found) else right(value)

    return search


def _both(left, right):
    def search(value):
        found = left(value)
        return right(value) if _true(found) else found

    return search


def _compare(test, left, right):
    return lambda value: test(left(value), right(value))


def _ordered(test):
    def compare(left, right):
        numbers = (int, float)
        if _is(left, numbers) and _is(right, numbers):
            return test(left, right)
        return None

    return compare


COMPARISONS = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": _ordered(lambda left, right: left < right),
    ">": _ordered(lambda left, right: left > right),
    "<=": _ordered(lambda left, right: left <= right),
    ">=": _ordered(lambda left, right: left >= right),
}
FUNCTIONS = {
    "contains": lambda value, item: item in value,
    "starts_with": lambda value, start: value.startswith(start),
    "ends_with": lambda value, end: value.endswith(end),
    "length": len,
    "not_null": lambda *values: next((value for value in values if value is not None), None),
    "keys": list,
    "sum": sum,
    "max": lambda values: max(values, default=None),
    "min": lambda values: min(values, default=None),
    "sort": sorted,
    "reverse": lambda values: values[::-1],
    "to_string": lambda value: value if _is(value, str) else str(value),
}


class Expression:
    """An expression that was understood."""

    __slots__ = ("expression", "search")

    def __init__(self, text):
        parser = _Parser(text)
        self.expression = text
        self.search = parser.pipe()
        parser.take("end")


def compile(text):
    """Understands an expression. QueryError where it goes beyond this."""
    return Expression(text)


def compile_for_caller(text):
    """The same, by the real library where the function has it."""
    try:
        import jmespath
    except ImportError:
        return compile(text)
    return jmespath.compile(text)
