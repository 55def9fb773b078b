"""The input shapes of operations, from their table.

An entry is members, separated by spaces: a name, `!` where it is required, `:` and its kind: `s`
text, `i` integer, `b` boolean, `t` instant, `m` a map of texts, `o` bytes, `B` the body, `{Name` a
structure, `[kind` a list. A number behind the kind is the least length or value.
"""

from .operations_table import ERRORS, OPERATIONS, STRUCTURES

_structures = {}
_operations = {}


class Structure:
    """Members by name, in their order: `(kind, least, required)`."""

    __slots__ = ("members", "required", "body")

    def __init__(self, text):
        self.members = {}
        self.required = []
        self.body = None
        for word in text.split():
            if word[0] == "|":
                self.required = word[1:].split(",")
                continue
            name, _, kind = word.partition(":")
            required = name[-1] == "!"
            if required:
                name = name[:-1]
                self.required.append(name)
            letters = kind.rstrip("0123456789") if kind[0] in "si" else kind
            self.members[name] = (letters, int(kind[len(letters) :] or 0))
            if letters == "B":
                self.body = name


def operation(name):
    """The input shape of an operation."""
    found = _operations.get(name)
    if found is None:
        found = _operations[name] = Structure(OPERATIONS[name])
    return found


def structure(name):
    """The members of a structure."""
    found = _structures.get(name)
    if found is None:
        found = _structures[name] = Structure(STRUCTURES[name])
    return found


def snake(name):
    """GetBucketACL -> get_bucket_acl, as botocore names methods."""
    out = []
    for at, letter in enumerate(name):
        if letter.isupper() and at:
            before, behind = name[at - 1], name[at + 1 : at + 2]
            if not before.isupper() or (behind and behind.islower()):
                if before != "_":
                    out.append("_")
        out.append(letter.lower())
    return "".join(out)


def _methods():
    special = {"ListObjectsV2": "list_objects_v2"}
    return {special.get(name) or snake(name): name for name in OPERATIONS}


METHODS = _methods()
# Credentials of directory buckets, answers of Object Lambda, keys of a KMS: no host carries these.
ELSEWHERE = {
    "create_session": "CreateSession",
    "update_object_encryption": "UpdateObjectEncryption",
    "write_get_object_response": "WriteGetObjectResponse",
}
__all__ = ["ELSEWHERE", "ERRORS", "METHODS", "Structure", "operation", "snake", "structure"]
