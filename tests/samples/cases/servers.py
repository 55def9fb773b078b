"""vSwarm's servers of gRPC: their files are unmodified, and `adapters/servicer.py` is their transport."""

import base64
import pickle
import struct
import zlib

from case import Case, Content, Part, bucket

from .texts import UUID

BENCHMARKS = "benchmarks/"
TRACING, STORAGE = "utils/tracing/python/tracing.py", "utils/storage/python/storage.py"
VIDEO = Content("benchmarks/video-analytics/video_streaming/reference/video.mp4", "vSwarm")
SIDE = 160


def _png():
    """A picture with a gradient: those of image-rotate are not in the repository, but their names in
    Git's store of large files."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    pixels = bytearray()
    for row in range(SIDE):
        pixels += b"\0"
        for column in range(SIDE):
            pixels += bytes((row, column, (row * column) % 256))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(pixels))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _case(path, events, prepare, parts=(), environment=None, **more):
    server = path.rpartition("/")[2].removesuffix(".py")
    return Case(
        BENCHMARKS + path,
        more.pop("services", "s3"),
        events,
        handler="handler",
        adapter="servicer.py",
        collection="vSwarm",
        parts=(BENCHMARKS + path, TRACING, *parts),
        packages="servers",
        memory="1GiB",
        environment={"IS_LAMBDA": "yes", "SERVER": server, **(environment or {})},
        prepare=prepare,
        **more,
    )


def _generated(name):
    """The modules that protoc has made for a benchmark, where its Dockerfile puts them."""
    return (
        Part("proto/%s/%s_pb2_grpc.py" % (name, name), "", "vSwarm-proto"),
        Part("proto/%s/%s_pb2.py" % (name, name), "proto/" + name, "vSwarm-proto"),
    )


IMAGE_ROTATE = _case(
    "image-rotate/python/server.py",
    (
        {"request": {"name": "a.png"}, "fetch": {"a.png": ["pictures", "a.png"]}},
        {"request": {}, "fetch": {"default.jpg": ["pictures", "a.png"]}},
    ),
    bucket("pictures", {"a.png": _png()}),
    parts=_generated("image_rotate"),
    alias="image-rotate",
    shows="return msg: python.image_rotate.a.png | runtime: Python",
)
IN_NETWORK = "its database is reached by TCP; in the default mode a function has no network"
IMAGE_ROTATE_GRIDFS = _case(
    "image-rotate/python/server.py",
    ({"request": {"name": "b.png"}},),
    (),
    parts=_generated("image_rotate"),
    environment={"ARGUMENTS": "--db_addr $DATABASE"},
    documents={("image_db", "b.png"): _png()},
    alias="image-rotate-gridfs",
    shows="return msg: python.image_rotate.b.png | runtime: Python",
    fault=IN_NETWORK,
    fault_shows="Address family not supported by protocol",
)
VIDEO_PROCESSING = _case(
    "video-processing/python/server.py",
    (
        {
            "request": {"name": "a.mp4"},
            "fetch": {"a.mp4": ["videos", "a.mp4"]},
            "keep": {"output-a.mp4": ["videos", "grey.mp4"]},
        },
    ),
    bucket("videos", {"a.mp4": VIDEO}),
    parts=_generated("video_processing"),
    alias="video-processing",
    shows="return msg: python.video_processing.a.mp4 | runtime: Python",
)

STACKING = "vhive-stacking"
STACKING_PARTS = (STORAGE, "benchmarks/stacking-training/proto")
LASSO = {"model": "Lasso", "params": {"alpha": 0.1}}
LOGISTIC = {"model": "LogisticRegression", "params": {}}


def _bytes(value):
    """Bytes, as protocol buffers have them in JSON."""
    return base64.b64encode(pickle.dumps(value)).decode()


def _points(number):
    """Points of two classes in the plane, and their classes."""
    features = [[float((n * 7) % 11), float((n * 5) % 13)] for n in range(number)]
    return features, [int(x + y > 11) for x, y in features]


def _dataset():
    features, labels = _points(60)
    return pickle.dumps({"features": features, "labels": labels})


def _stacking(name, events, prepare, **more):
    return _case(
        "stacking-training/%s/main.py" % name,
        events,
        prepare,
        parts=STACKING_PARTS,
        alias=name,
        **more,
    )


TRAINER = _stacking(
    "trainer",
    ({"request": {"dataset_key": "dataset", "model_config": _bytes(LASSO), "trainer_id": "7"}},),
    bucket(STACKING, {"dataset": _dataset()}),
    shows="pred_model_7",
)
REDUCER = _stacking(
    "reducer",
    (
        {
            "request": {
                "model_pred_tuples": [
                    {"model_key": "one", "pred_key": "1"},
                    {"model_key": "two", "pred_key": "2"},
                ]
            }
        },
    ),
    bucket(
        STACKING,
        {
            "one": pickle.dumps({"a": 1}),
            "two": pickle.dumps({"b": 2}),
            "1": pickle.dumps([0.5, 1.0, 1.5]),
            "2": pickle.dumps([4.0, 2.0, 0.0]),
        },
    ),
    shows="meta_features",
)
METATRAINER = _stacking(
    "metatrainer",
    (
        {
            "request": {
                "dataset_key": "dataset",
                "models_key": "models",
                "meta_features_key": "features",
                "model_config": _bytes(LOGISTIC),
            }
        },
    ),
    bucket(
        STACKING,
        {
            "dataset": _dataset(),
            "models": pickle.dumps(["a model"]),
            "features": pickle.dumps(_points(60)[0]),
        },
    ),
    shows="meta_predictions_key",
)
STACKING_DRIVER = _stacking(
    "driver",
    ({"request": {"name": "x"}},),
    bucket(STACKING),
    services="lambda s3",
    environment={
        "ARGUMENTS": "--tAddr trainer:50052 --rAddr reducer:50053 --mAddr metatrainer:50054",
        "TrainersNum": "4",
    },
    callees=(TRAINER, REDUCER, METATRAINER),
    shows='"message": "%s"' % STACKING,
)

TUNING = "vhive-tuning"
TUNING_PARTS = (STORAGE, "benchmarks/tuning-halving/proto")
TUNING_TRAINER = _case(
    "tuning-halving/trainer/main.py",
    (
        {
            "request": {
                "dataset_key": "dataset",
                "model_config": _bytes(
                    {
                        "model": "RandomForestRegressor",
                        "params": {"n_estimators": 3, "random_state": 42},
                    }
                ),
                "count": 5,
                "sample_rate": 1.0,
            }
        },
    ),
    bucket(TUNING, {"dataset": _dataset()}),
    parts=TUNING_PARTS,
    alias="trainer",
    shows="pred_model_5",
)
TUNING_DRIVER = _case(
    "tuning-halving/driver/main.py",
    ({"request": {"name": "x"}},),
    bucket(TUNING),
    parts=TUNING_PARTS,
    alias="driver",
    services="lambda s3",
    environment={"ARGUMENTS": "--tAddr trainer:50052"},
    callees=(TUNING_TRAINER,),
    shows='"message": "%s"' % TUNING,
)

VIDEO_PROCESSING_GRIDFS = _case(
    "video-processing/python/server.py",
    ({"request": {"name": "b.mp4"}},),
    (),
    parts=_generated("video_processing"),
    environment={"ARGUMENTS": "--db_addr $DATABASE"},
    documents={("video_db", "b.mp4"): VIDEO},
    alias="video-processing-gridfs",
    shows="return msg: python.video_processing.b.mp4 | runtime: Python",
    fault=IN_NETWORK,
    fault_shows="Address family not supported by protocol",
)
DECODER = _case(
    "video-analytics/decoder/decode.py",
    ({"request": {"s3key": "reference.mp4"}},),
    bucket("vhive-video-bench", {"reference.mp4": VIDEO}),
    parts=(STORAGE, "benchmarks/video-analytics/proto"),
    alias="decoder",
    services="lambda s3",
    environment={
        "TRANSFER_TYPE": "S3",
        "DecoderFrames": "3",
        "ARGUMENTS": "--addr recog:50052",
    },
    callees=("recog",),
    texts=(UUID,),
    shows="decoder-frame-2.jpg",
)
CASES = (
    IMAGE_ROTATE,
    IMAGE_ROTATE_GRIDFS,
    VIDEO_PROCESSING,
    VIDEO_PROCESSING_GRIDFS,
    TRAINER,
    REDUCER,
    METATRAINER,
    STACKING_DRIVER,
    TUNING_TRAINER,
    TUNING_DRIVER,
    DECODER,
)
# Other benchmarks of vSwarm that keep data in a store, and why they are not run.
LEFT_OUT = {
    "benchmarks/video-analytics/object_recognition/recog.py": (
        "it loads the weights of a model from a hub in the network while it is imported"
    ),
    "benchmarks/video-analytics-standalone": "the same",
    "benchmarks/video-analytics/video_streaming": "it is in Go, and has a server of gRPC only",
}
