"""Makes the host's tables of the operations on configurations out of botocore's description of S3.

    python tests/rust_tables.py           compares crates/functions/s3/src/operation/generated/*.rs with it
    python tests/rust_tables.py --write   writes them

Operations that a file beside `generated` has by hand are left out; these are all others. Tables hold
names, places and kinds only.
"""

import os
import re
import shutil
import subprocess
import sys

from tables import LEFT_OUT, data, snake

HERE = os.path.dirname(os.path.abspath(__file__))
OPERATIONS = os.path.join(HERE, "..", "..", "..", "crates", "functions", "s3", "src", "operation")
GENERATED = os.path.join(OPERATIONS, "generated")
KINDS = {"string": "Text", "integer": "Integer", "long": "Integer", "boolean": "Boolean"}
WORDS = {"read": "read", "put": "set", "remove": "make and remove"}
# Name a second object in a way that the host's policy does not know; see SECOND below.
SECOND_OBJECT = {"RenameObject"}
# A parameter of such a name makes an operation one with a second object. PartitionDateSource of
# PutBucketLogging says which date names a log.
SECOND = re.compile(r"(?<!Date)Source$|^OutputLocation$")
# Checked by the host: CopySource in copy_source.rs, OutputLocation in policy.rs.
CHECKED = {"CopyObject", "UploadPartCopy", "RestoreObject"}
# Decided by the way that a body takes, and said by botocore alone.
UNDESCRIBED = ("Body", "ContentLength", "Expires", "ExpiresString")
COMMON = ("ExpectedBucketOwner", "RequestPayer")
# Where a policy's action is not named as its operation is.
ACTIONS = {
    "CreateBucketMetadataConfiguration": "CreateBucketMetadataTableConfiguration",
    "DeleteBucketMetadataConfiguration": "DeleteBucketMetadataTableConfiguration",
    "DeleteBucketReplication": "PutReplicationConfiguration",
    "DeletePublicAccessBlock": "PutBucketPublicAccessBlock",
    "GetBucketMetadataConfiguration": "GetBucketMetadataTableConfiguration",
    "GetBucketReplication": "GetReplicationConfiguration",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "ListDirectoryBuckets": "ListAllMyDirectoryBuckets",
    "PutBucketReplication": "PutReplicationConfiguration",
    "PutObjectLockConfiguration": "PutBucketObjectLockConfiguration",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
}
OF_BUCKETS = {
    "AccelerateConfiguration": "AccelerateConfiguration",
    "AnalyticsConfiguration": "AnalyticsConfiguration",
    "AnalyticsConfigurations": "AnalyticsConfiguration",
    "Cors": "BucketCORS",
    "Encryption": "EncryptionConfiguration",
    "IntelligentTieringConfiguration": "IntelligentTieringConfiguration",
    "IntelligentTieringConfigurations": "IntelligentTieringConfiguration",
    "InventoryConfiguration": "InventoryConfiguration",
    "InventoryConfigurations": "InventoryConfiguration",
    "Lifecycle": "LifecycleConfiguration",
    "LifecycleConfiguration": "LifecycleConfiguration",
    "MetricsConfiguration": "MetricsConfiguration",
    "MetricsConfigurations": "MetricsConfiguration",
    "NotificationConfiguration": "BucketNotification",
}
# A delete is a put of nothing for these.
PUT_AS_DELETE = ("Cors", "Encryption", "Lifecycle", "OwnershipControls") + tuple(
    name for name in OF_BUCKETS if name.endswith("Configuration")
)


def action(name):
    """What a policy allows or forbids."""
    if name in ACTIONS:
        return "s3:" + ACTIONS[name]
    verb, _, rest = re.sub(r"^(Get|Put|Delete|List)Bucket", r"\1 ", name).partition(" ")
    if not rest:
        return "s3:" + name
    if verb == "Delete" and rest in PUT_AS_DELETE:
        verb = "Put"
    if verb == "List":
        verb = "Get"
    return "s3:" + verb + OF_BUCKETS.get(rest, "Bucket" + rest)


def by_hand():
    """Operations that the tables beside these have."""
    found = set()
    for name in ("buckets", "listing", "multipart", "objects", "select"):
        with open(os.path.join(OPERATIONS, name + ".rs")) as file:
            found |= set(re.findall(r'^ +name: "(\w+)"', file.read(), re.M))
    return found


class Maker:
    """The texts of the tables."""

    def __init__(self):
        model = data("botocore", "service-2")
        self.shapes = model["shapes"]
        self.operations = model["operations"]
        self.structures = {}

    def kind(self, shape, target, default):
        """The kind of text that a leaf is."""
        if shape["type"] == "timestamp":
            form = target.get("timestampFormat") or shape.get("timestampFormat") or default
            return {"rfc822": "HttpDate", "iso8601": "Timestamp"}[form]
        return "Names" if shape["type"] == "list" else KINDS[shape["type"]]

    def shape(self, name, target):
        """An element's content."""
        shape = self.shapes[name]
        if shape["type"] == "structure":
            return "Shape::Structure(%s)" % self.structure(name)
        if shape["type"] == "list":
            member = shape["member"]
            inner = self.shape(member["shape"], member)
            if shape.get("flattened") or target.get("flattened"):
                return "Shape::Flat(&%s)" % inner
            return 'Shape::List("%s", &%s)' % (member.get("locationName", "member"), inner)
        kind = self.kind(shape, target, "iso8601")
        return "TEXT" if kind == "Text" else "Shape::Leaf(Kind::%s)" % kind

    def structure(self, name):
        """The constant that has a structure's members."""
        constant = snake(name).upper()
        if name not in self.structures:
            self.structures[name] = None
            members = self.shapes[name]["members"].items()
            self.structures[name] = "".join(self.member(m, t) for m, t in members)
        return "shapes::" + constant

    def member(self, name, target):
        """A member of a structure."""
        element = target.get("locationName", name)
        if target.get("xmlAttribute"):
            return 'named("%s", "%s", Shape::XsiType),\n' % (name, element)
        shape = self.shape(target["shape"], target)
        if element != name:
            return 'named("%s", "%s", %s),\n' % (name, element, shape)
        if shape == "TEXT":
            return 'text("%s"),\n' % name
        leaf = re.fullmatch(r"Shape::Leaf\((.*)\)", shape)
        if leaf:
            return 'leaf("%s", %s),\n' % (name, leaf.group(1))
        return 'within("%s", %s),\n' % (name, shape)

    def field(self, name, target, required, payload):
        """A parameter."""
        shape = self.shapes[target["shape"]]
        place = target.get("locationName", name)
        if payload and shape["type"] == "structure":
            root = 'Place::Xml("%s", %s)' % (place, self.structure(target["shape"]))
            out = 'field("%s", %s, Kind::Text)' % (name, root)
        elif payload:
            out = 'field("%s", Place::Text, Kind::Text)' % name
        else:
            way = {"header": "header", "querystring": "query"}[target["location"]]
            out = '%s("%s", "%s")' % (way, name, place)
            default = "rfc822" if way == "header" else "iso8601"
            kind = self.kind(shape, target, default)
            if kind != "Text":
                out = "of(Kind::%s, %s)" % (kind, out)
        return "required(%s),\n" % out if required else out + ",\n"

    def found(self, target_name, target):
        """A header field of the answer."""
        kind = self.kind(self.shapes[target["shape"]], target, "rfc822")
        name = '"%s", "%s"' % (target_name, target["locationName"].lower())
        return (
            "response_header(%s),\n" % name if kind == "Text" else "response_header_as(Kind::%s, %s),\n" % (kind, name)
        )

    def input(self, operation):
        """The parameters, and whether the body is the caller's."""
        shape = self.shapes[operation["input"]["shape"]]
        out, has_body = "", False
        for name, target in shape.get("members", {}).items():
            payload = shape.get("payload") == name
            if name in COMMON or target.get("location") == "uri":
                continue
            if payload and self.shapes[target["shape"]]["type"] == "blob":
                has_body = True
                continue
            out += self.field(name, target, name in shape.get("required", []), payload)
        return out, has_body

    def output(self, operation):
        """The header fields, and the body."""
        if "output" not in operation:
            return "", "Output::None"
        shape = self.shapes[operation["output"]["shape"]]
        headers, members, body = "", "", None
        for name, target in shape.get("members", {}).items():
            if target.get("location") == "header":
                headers += self.found(name, target)
            elif shape.get("payload") == name:
                inner = self.shapes[target["shape"]]
                if inner["type"] == "structure":
                    own = self.shape(target["shape"], target)
                    members += 'named("%s", "", %s),\n' % (name, own)
                else:
                    raw = inner["type"] == "string"
                    body = 'Output::Raw("%s")' % name if raw else "Output::Object"
            else:
                members += self.member(name, target)
        if members:
            body = "Output::Xml(&[\n%s])" % members
        return headers, body or "Output::None"

    def operation(self, name):
        """An entry of the table."""
        operation = self.operations[name]
        method = operation["http"]["method"].title()
        path, _, query = operation["http"]["requestUri"].partition("?")
        target = "Object" if "Key" in path else "Bucket" if "Bucket" in path else "Service"
        given, has_body = self.input(operation)
        headers, body = self.output(operation)
        reads = method in ("Get", "Head")
        about = "Object" if target == "Object" else "Bucket"
        lines = ['name: "%s"' % name, 'action: "%s"' % action(name)]
        lines += ["method: Method::" + method] if method != "Get" else []
        lines += ["target: Target::" + target] if target != "Bucket" else []
        effect = ("Read" if reads else "Change") + about
        lines += ["effect: Effect::" + effect] if effect != "ReadBucket" else []
        if query:
            lines.append("query: &[%s]" % ", ".join('("%s", "")' % q for q in query.split("&")))
        lines.append("input: &[COMMON%s]" % (", &[\n%s]" % given if given else ""))
        checksum = operation.get("httpChecksum", {})
        if has_body:
            lines.append("has_body: true")
        if checksum.get("requestChecksumRequired") or (has_body and checksum):
            lines.append("digest: Digest::Crc32")
        if headers:
            lines.append("response_headers: &[&[\n%s]]" % headers)
        if body != "Output::None":
            lines.append("output: " + body)
        return "Operation {\n%s,\n..BASE\n},\n" % ",\n".join(lines)

    def described(self):
        """What the operations that are written by hand must have: a line for each parameter, header
        field and element, with its place and kind."""
        lines = []
        for name in sorted(by_hand()):
            operation = self.operations[name]
            for way in ("input", "output"):
                shape = self.shapes.get(operation.get(way, {}).get("shape"), {})
                for member, target in shape.get("members", {}).items():
                    if target.get("location") != "uri" and member not in UNDESCRIBED:
                        self.describe(name + " " + way, member, shape, target, lines)
        return "\n".join(lines) + "\n"

    def describe(self, start, member, shape, target, lines):
        """The lines of a member."""
        inner = self.shapes[target["shape"]]
        location = target.get("location", "body")
        place = target.get("locationName", member)
        if location == "headers" or inner["type"] == "map":
            lines.append("%s %s headers" % (start, member))
        elif location != "body":
            default = "iso8601" if location == "querystring" else "rfc822"
            kind = self.kind(inner, target, default)
            lines.append("%s %s %s %s %s" % (start, member, location, place.lower(), kind))
        elif inner["type"] != "blob" and not inner.get("eventstream"):
            self.elements("%s %s" % (start, member), target, lines)

    def elements(self, start, target, lines):
        """The lines of an element and of those within."""
        shape = self.shapes[target["shape"]]
        if shape["type"] == "list":
            return self.elements(start, shape["member"], lines)
        if shape["type"] != "structure":
            lines.append("%s body %s" % (start, self.kind(shape, target, "iso8601")))
        for member, inner in shape.get("members", {}).items():
            self.elements("%s.%s" % (start, member), inner, lines)

    def with_second_object(self):
        """Operations with a parameter, at any depth, that names a second object."""

        def names(shape, seen):
            if shape in seen:
                return
            target = self.shapes[shape]
            if target["type"] == "list":
                yield from names(target["member"]["shape"], seen | {shape})
            for member, inner in target.get("members", {}).items():
                yield member
                yield from names(inner["shape"], seen | {shape})

        return {
            name
            for name, operation in self.operations.items()
            if "input" in operation
            and any(SECOND.search(member) for member in names(operation["input"]["shape"], frozenset()))
        }

    def files(self):
        """Every file: name and text before it is formatted."""
        head = (
            "//! %s Generated by guest/python/tests/rust_tables.py.\n\n"
            "use super::super::schema::*;\n%s\n"
        )
        left = sorted(set(self.operations) - LEFT_OUT - SECOND_OBJECT - by_hand())
        unknown = self.with_second_object() - LEFT_OUT - SECOND_OBJECT - CHECKED
        if unknown:
            raise SystemExit("a second object, which the host does not check: %s" % sorted(unknown))
        groups = {"read": "", "put": "", "remove": ""}
        for name in left:
            method = self.operations[name]["http"]["method"]
            groups[{"GET": "read", "PUT": "put"}.get(method, "remove")] += self.operation(name)
        out = {}
        for kind, text in groups.items():
            what = "Operations that %s configurations." % WORDS[kind]
            table = "pub(in crate::operation) const TABLE: &[Operation] = &[\n%s];\n" % text
            out[kind + ".rs"] = head % (what, "use super::shapes;\n") + table
        structures = "".join(
            "pub(super) const %s: &[Member] = &[\n%s];\n" % (snake(name).upper(), members)
            for name, members in sorted(self.structures.items())
        ).replace("shapes::", "")
        out["described.txt"] = self.described()
        out["shapes.rs"] = head % ("Structures of configurations.", "") + structures
        return out


def plain(text):
    """A text without what the formatter decides."""
    return re.sub(r",(?=[\])}])", "", re.sub(r"\s+", "", text))


def main():
    """Compares or writes."""
    if not os.path.isdir(OPERATIONS):
        return
    for name, text in Maker().files().items():
        path = os.path.join(GENERATED, name)
        if "--write" in sys.argv:
            os.makedirs(GENERATED, exist_ok=True)
            with open(path, "w") as file:
                file.write(text)
            if name.endswith(".rs") and shutil.which("rustfmt"):
                config = os.path.join(HERE, "..", "..", "..", "rustfmt.toml")
                options = ["--edition", "2024", "--config-path", config, path]
                subprocess.run(["rustfmt"] + options, check=True)
            continue
        with open(path) as file:
            if plain(file.read()) != plain(text):
                sys.exit("%s differs: run guest/python/test --write" % path)


if __name__ == "__main__":
    main()
