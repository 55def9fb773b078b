"""Says whether outputs are right, by other means than the functions'.

    python check.py --inputs DIRECTORY --outputs DIRECTORY [--only NAME...]

reads what inputs.py wrote, and the outputs of workloads: DIRECTORY/KEY for each of its keys.
Exit 1, and what is wrong, where one is.
"""

import argparse
import gzip
import html.parser
import io
import json
import math
import os
import sys
import tomllib

import numpy as np
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def due(right, what):
    """Refuses an output."""
    if not right:
        raise ValueError(what)


def template(inputs, outputs):
    """Every cell of the page is that of the order."""
    order = json.loads(inputs["template/order.json"])
    cells, texts = [], []

    class Reader(html.parser.HTMLParser):
        where = None

        def handle_starttag(self, tag, attrs):
            self.where = tag
            if tag == "td":
                cells.append("")

        def handle_endtag(self, tag):
            self.where = None

        def handle_data(self, data):
            if self.where == "td":
                cells[-1] += data
            elif self.where == "p":
                texts.append(data)

    Reader(convert_charrefs=True).feed(outputs[""].decode())
    lines = order["lines"]
    expected = [str(line[name]) for line in lines for name in ("article", "count", "cents")]
    due(cells == expected, "the cells are not the order's")
    due(texts == ["Total: %d" % sum(line["cents"] for line in lines)], "the total is wrong")


def lr_serving(inputs, outputs):
    """The probabilities, one product at a time."""
    samples = np.load(io.BytesIO(inputs["lr-serving/batch.npy"])).tolist()
    *weights, bias = np.load(io.BytesIO(inputs["lr-serving/model.npy"])).tolist()
    answers = json.loads(outputs[""])
    due(len(answers) == len(samples), "there is not one answer a sample")
    for sample, answer in zip(samples, answers):
        score = bias + sum(value * weight for value, weight in zip(sample, weights))
        due(abs(answer - 1 / (1 + math.exp(-score))) < 2e-5, "a probability is wrong")


def aes(inputs, outputs):
    """It can be decrypted, with its key bound to it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    with open(os.path.join(HERE, "aes", "function.toml"), "rb") as file:
        key = bytes.fromhex(tomllib.load(file)["environment"]["DATA_KEY"])
    ((name, document),) = inputs.items()
    due(outputs[""] != document, "it is not encrypted")
    due(AESSIV(key).decrypt(outputs[""], [name.encode()]) == document, "it does not decrypt")


def reduce(inputs, outputs):
    """No word has another count, and none is more frequent than the last one."""
    total = {}
    for octets in inputs.values():
        for word, count in json.loads(octets).items():
            total[word] = total.get(word, 0) + count
    most = json.loads(outputs[""])
    due(len(most) == min(100, len(total)), "the number of words is wrong")
    for word, count in most:
        due(total.pop(word) == count, "the count of %r is wrong" % word)
    due(max(total.values(), default=0) <= most[-1][1], "a frequent word is missing")


def json_transform(inputs, outputs):
    """Sums agree, of each customer and of all."""
    orders = [json.loads(line) for line in inputs["json-transform/orders.jsonl"].splitlines()]
    customers = json.loads(outputs[""])
    due(set(customers) == {order["customer"] for order in orders}, "the customers are wrong")
    for name, customer in customers.items():
        own = [order for order in orders if order["customer"] == name]
        cents = sum(line["cents"] for order in own for line in order["lines"])
        due(customer == {"orders": len(own), "cents": cents}, "%s is wrong" % name)


def log_filter(inputs, outputs):
    """The lines with a status of 500 and more, in order."""
    kept = []
    for line in inputs["log-filter/access.log"].split(b"\n"):
        fields = line.split(b'"')
        status = fields[2].split() if len(fields) > 2 else []
        if status and status[0].startswith(b"5"):
            kept.append(line)
    due(outputs[""].rstrip(b"\n").split(b"\n") == kept, "the lines are wrong")


def alike(octets, original, size):
    """A JPEG of that size that shows the same picture."""
    picture = Image.open(io.BytesIO(octets))
    due(picture.format == "JPEG" and picture.size == size, "it is no JPEG of %r" % (size,))
    coarse = Image.open(io.BytesIO(original)).convert("RGB").resize((16, 12), Image.Resampling.BOX)
    small = picture.convert("RGB").resize((16, 12), Image.Resampling.BOX)
    difference = np.asarray(coarse, dtype=float) - np.asarray(small, dtype=float)
    due(np.abs(difference).mean() < 4, "it shows something else")


def image_resize(inputs, outputs):
    """Half as wide and high."""
    alike(outputs[""], inputs["image-resize/photo.jpg"], (400, 300))


def thumbnails(inputs, outputs):
    """One of each size."""
    for edge in (256, 128, 64):
        size = (edge, edge * 3 // 4)
        alike(outputs["-%d.jpg" % edge], inputs["thumbnails/photo.jpg"], size)


def map_(inputs, outputs):
    """The counts, without the expression that the function uses."""
    counts = {}
    for word in inputs["map/shard.txt"].decode().lower().replace(".", " ").split():
        counts[word] = counts.get(word, 0) + 1
    due(json.loads(outputs[""]) == counts, "the counts are wrong")


def cnn(inputs, outputs):
    """The network again, with a loop for each byte of a kernel."""
    picture = np.load(io.BytesIO(inputs["cnn/picture.npy"]))
    model = np.load(io.BytesIO(inputs["cnn/model.npz"]))
    planes = [picture[:, :, colour].astype(float) / 255 for colour in range(3)]
    for name in ("first", "second", "third"):
        made = []
        for kernel in model[name].astype(float):
            height, width = planes[0].shape[0] - 2, planes[0].shape[1] - 2
            summed = np.zeros((height, width))
            for plane, part in zip(planes, kernel):
                for down in range(3):
                    for across in range(3):
                        window = plane[down : down + height, across : across + width]
                        summed += part[down, across] * window
            summed = np.maximum(summed, 0)[: height // 2 * 2, : width // 2 * 2]
            tops = np.maximum(summed[0::2], summed[1::2])
            made.append(np.maximum(tops[:, 0::2], tops[:, 1::2]))
        planes = made
    scores = np.array([plane.mean() for plane in planes]) @ model["classes"].astype(float)
    chances = np.exp(scores) / np.exp(scores).sum()
    answer = json.loads(outputs[""])
    due(answer["class"] == int(chances.argmax()), "the class is wrong")
    due(np.abs(np.array(answer["chances"]) - chances).max() < 1e-3, "a chance is wrong")


def stacking(inputs, outputs):
    """It guesses better than the more frequent label does, and uses its base models."""
    table = np.load(io.BytesIO(inputs["stacking/table.npy"]))
    often = table[:, -1].mean()
    answer = json.loads(outputs[""])
    due(1 >= answer["accuracy"] > max(often, 1 - often) + 0.1, "it has learnt nothing")
    ridge, neighbours, bias = answer["weights"]
    due(ridge > 0 and neighbours > 0 and bias < 0, "the base models are not used")


def compression(inputs, outputs):
    """It is shorter, and expands to the document."""
    document = inputs["compression/document.txt"]
    due(len(outputs[""]) < len(document) / 2, "it is not compressed")
    due(gzip.decompress(outputs[""]) == document, "it is another document")


CHECKS = {
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


def check(case, inputs, outputs):
    """Refuses wrong outputs; inputs by their keys, outputs by their suffixes."""
    CHECKS[case["name"]](inputs, outputs)


def read(path):
    """A file's bytes."""
    with open(path, "rb") as file:
        return file.read()


def main():
    """The command."""
    parser = argparse.ArgumentParser(description="Says whether outputs are right.")
    parser.add_argument("--inputs", required=True, metavar="DIRECTORY")
    parser.add_argument("--outputs", required=True, metavar="DIRECTORY")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these, instead of all")
    arguments = parser.parse_args()
    with open(os.path.join(arguments.inputs, "inputs.json"), encoding="utf-8") as file:
        description = json.load(file)
    wrong = 0
    for case in description["workloads"]:
        if arguments.only is not None and case["name"] not in arguments.only:
            continue
        objects = [(each["bucket"], each["key"]) for each in case["objects"]]
        try:
            inputs = {
                key: read(os.path.join(arguments.inputs, "objects", bucket, key))
                for bucket, key in objects
            }
            name = case["event"]["output"]["key"]
            outputs = {
                suffix: read(os.path.join(arguments.outputs, name + suffix))
                for suffix in case["outputs"]
            }
            check(case, inputs, outputs)
        except (ValueError, KeyError, OSError) as error:
            wrong += 1
            print("%s: %s: %s" % (case["name"], type(error).__name__, error))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
