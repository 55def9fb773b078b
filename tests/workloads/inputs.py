"""Makes the inputs of the workloads: the same seed makes the same bytes.

    python inputs.py --out DIRECTORY [--seed N]

writes every object to DIRECTORY/objects/BUCKET/KEY, and DIRECTORY/inputs.json:

    {"seed": N, "workloads": [CASE...], "sizes": [CASE...]}
    CASE = {"name", "input_bytes", "event", "objects": [{"bucket", "key", "bytes"}...],
            "outputs": [SUFFIX...]}

An event has S3's notification of what was put, and where the output belongs: its caller sets
`output.key`, and finds the outputs at that key followed by each suffix. `sizes` are cases of
one workload whose input has a given size.
"""

import argparse
import functools
import io
import json
import math
import os
import random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

INPUTS = "inputs"
OUTPUTS = "outputs"
SIZES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
SYLLABLES = "ka lo mi ter ran du shi pol en ve ar gu no sti ba rel qui on".split()


@functools.cache
def vocabulary():
    """Words, of which the first are the most frequent."""
    source = random.Random("vocabulary")
    words = set()
    while len(words) < 2000:
        words.add("".join(source.choices(SYLLABLES, k=source.randint(1, 4))))
    words = sorted(words)
    source.shuffle(words)
    return words


def text(source, bytes_due):
    """Lines of words whose frequencies follow Zipf's law."""
    words = vocabulary()
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    cumulated = np.cumsum(weights).tolist()
    parts, length = [], 0
    while length < bytes_due:
        line = " ".join(source.choices(words, cum_weights=cumulated, k=12)) + ".\n"
        parts.append(line.capitalize())
        length += len(line)
    return "".join(parts)[:bytes_due].encode()


def photograph(source, width, height):
    """A picture with gradients, edges and noise, as a JPEG."""
    down, across = np.mgrid[0:height, 0:width].astype(np.float32)
    planes = []
    for _ in range(3):
        planes.append(
            127
            + 70 * np.sin(across / source.uniform(40, 160) + source.uniform(0, 6))
            + 50 * np.cos(down / source.uniform(40, 160) + source.uniform(0, 6))
        )
    noise = np.random.default_rng(source.getrandbits(32)).normal(0, 6, (height, width, 3))
    octets = np.clip(np.stack(planes, axis=2) + noise, 0, 255).astype(np.uint8)
    picture = Image.fromarray(octets)
    draw = ImageDraw.Draw(picture)
    for _ in range(25):
        left, top = source.randrange(width), source.randrange(height)
        box = (left, top, left + source.randint(10, 150), top + source.randint(10, 150))
        colour = tuple(source.randrange(256) for _ in range(3))
        draw.ellipse(box, fill=colour)
    encoded = io.BytesIO()
    picture.filter(ImageFilter.GaussianBlur(0.6)).save(encoded, "JPEG", quality=88)
    return encoded.getvalue()


def array(values):
    """An array as NumPy writes it."""
    encoded = io.BytesIO()
    np.save(encoded, values)
    return encoded.getvalue()


def order(source, number, lines):
    """An order of a shop."""
    return {
        "number": number,
        "customer": "customer-%03d" % source.randrange(200),
        "lines": [
            {
                "article": "%s <%s>" % tuple(source.choices(vocabulary(), k=2)),
                "count": source.randint(1, 9),
                "cents": source.randint(99, 99999),
            }
            for _ in range(lines)
        ],
    }


def access_log(source, bytes_due):
    """Lines of a web server's log; one in twenty tells of its failure."""
    parts, length, second = [], 0, 0
    while length < bytes_due:
        second += source.randint(0, 2)
        status = (
            500 + source.randrange(5) if source.random() < 0.05 else source.choice((200, 304, 404))
        )
        line = '10.%d.%d.%d - - [01/Jan/2026:%02d:%02d:%02d] "GET /%s HTTP/1.1" %d %d\n' % (
            source.randrange(256),
            source.randrange(256),
            source.randrange(256),
            second // 3600 % 24,
            second // 60 % 60,
            second % 60,
            "/".join(source.choices(vocabulary(), k=3)),
            status,
            source.randint(100, 90000),
        )
        parts.append(line)
        length += len(line)
    return "".join(parts).encode()[:bytes_due]


class Case:
    """A workload's inputs."""

    def __init__(self, name, outputs=("",)):
        self.name = name
        self.outputs = list(outputs)
        self.contents = {}
        self.event = {"Records": [], "output": {"bucket": OUTPUTS, "key": name}}

    def put(self, key, octets):
        """An object whose arrival the event tells of."""
        self.contents[key] = octets
        self.event["Records"].append(
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {
                    "bucket": {"name": INPUTS},
                    "object": {"key": key, "size": len(octets)},
                },
            }
        )
        return self

    def model(self, key, octets):
        """An object that the event names as a model."""
        self.contents[key] = octets
        self.event["model"] = {"bucket": INPUTS, "key": key}
        return self

    def write(self, directory):
        """Writes the objects, and gives the description."""
        objects = []
        for key, octets in self.contents.items():
            path = os.path.join(directory, "objects", INPUTS, key)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(octets)
            objects.append({"bucket": INPUTS, "key": key, "bytes": len(octets)})
        return {
            "name": self.name,
            "input_bytes": sum(each["bytes"] for each in objects),
            "event": self.event,
            "objects": objects,
            "outputs": self.outputs,
        }


def template(source):
    body = json.dumps(order(source, 4711, 60)).encode()
    return Case("template").put("template/order.json", body)


def lr_serving(source):
    numbers = np.random.default_rng(source.getrandbits(32))
    samples = numbers.normal(size=(256, 32)).astype(np.float32)
    model = numbers.normal(size=33).astype(np.float32)
    case = Case("lr-serving").put("lr-serving/batch.npy", array(samples))
    return case.model("lr-serving/model.npy", array(model))


def aes(source, size=256 << 10, key="aes/document.bin"):
    return Case("aes").put(key, source.randbytes(size))


def reduce(source):
    case = Case("reduce")
    for number in range(12):
        counts = {}
        for word in source.choices(vocabulary(), k=400):
            counts[word] = counts.get(word, 0) + source.randint(1, 20)
        case.put("reduce/part-%02d.json" % number, json.dumps(counts, sort_keys=True).encode())
    return case


def json_transform(source):
    lines = [json.dumps(order(source, number, 3)) for number in range(120)]
    return Case("json-transform").put("json-transform/orders.jsonl", "\n".join(lines).encode())


def log_filter(source):
    return Case("log-filter").put("log-filter/access.log", access_log(source, 128 << 10))


def image_resize(source):
    return Case("image-resize").put("image-resize/photo.jpg", photograph(source, 800, 600))


def thumbnails(source):
    suffixes = ["-%d.jpg" % edge for edge in (256, 128, 64)]
    return Case("thumbnails", suffixes).put("thumbnails/photo.jpg", photograph(source, 1280, 960))


def map_(source):
    return Case("map").put("map/shard.txt", text(source, 256 << 10))


def cnn(source):
    numbers = np.random.default_rng(source.getrandbits(32))

    def layer(*shape):
        fan_in = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
        return (numbers.normal(size=shape) * math.sqrt(2 / fan_in)).astype(np.float32)

    weights = {
        "first": layer(16, 3, 3, 3),
        "second": layer(32, 16, 3, 3),
        "third": layer(64, 32, 3, 3),
        "classes": layer(64, 10),
    }
    model = io.BytesIO()
    np.savez(model, **weights)
    picture = numbers.integers(0, 256, size=(128, 128, 3), dtype=np.uint8)
    case = Case("cnn").put("cnn/picture.npy", array(picture))
    return case.model("cnn/model.npz", model.getvalue())


def stacking(source):
    numbers = np.random.default_rng(source.getrandbits(32))
    samples = numbers.normal(size=(1000, 16))
    plane = samples @ numbers.normal(size=16)
    ball = (samples[:, :4] ** 2).sum(axis=1) - 4
    labels = (plane + ball + numbers.normal(size=1000) > 0).astype(np.float64)
    table = np.column_stack([samples, labels]).astype(np.float32)
    return Case("stacking").put("stacking/table.npy", array(table))


def compression(source):
    return Case("compression").put("compression/document.txt", text(source, 192 << 10))


MAKERS = {
    "template": template,
    "lr-serving": lr_serving,
    "aes": aes,
    "reduce": reduce,
    "json-transform": json_transform,
    "log-filter": log_filter,
    "image-resize": image_resize,
    "thumbnails": thumbnails,
    "map": map_,
    "cnn": cnn,
    "stacking": stacking,
    "compression": compression,
}


def cases(seed):
    """One case of each workload."""
    return [make(random.Random("%d %s" % (seed, name))) for name, make in MAKERS.items()]


def sizes(seed):
    """The workload that only moves bytes, with inputs of several sizes."""
    return [
        aes(random.Random("%d size %d" % (seed, size)), size, "sizes/%d.bin" % size)
        for size in SIZES
    ]


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="Makes the inputs of the workloads.")
    parser.add_argument("--out", required=True, metavar="DIRECTORY")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    description = {
        "seed": arguments.seed,
        "workloads": [case.write(arguments.out) for case in cases(arguments.seed)],
        "sizes": [case.write(arguments.out) for case in sizes(arguments.seed)],
    }
    path = os.path.join(arguments.out, "inputs.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(description, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
