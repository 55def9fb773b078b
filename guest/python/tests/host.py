"""A host for tests: speaks the protocol, and carries calls to a service in this process.

    python tests/host.py --fd 3 --endpoint http://127.0.0.1:5000

With `--endpoint` the service is any S3, by the real botocore. It is neither fast nor guarded: the
real host is elsewhere.
"""

import argparse
import base64
import fcntl
import json
import mmap
import os
import queue
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from unlade_guest.region import HEADER, MAGIC, Extents  # noqa: E402

ENTRIES = 256
META_BYTES = 512 * 1024
TEXT_BYTES_MAX = 512 * 1024
SLOT_BYTES = 65536
SUBMISSION = struct.Struct("<QHHIIIIIQ24x")
COMPLETION = struct.Struct("<QHHIIIIIQQ16x")
MORE, PART = 1, 2
UNKNOWN = (1 << 64) - 1
META_UNIT = 64
ROOM_SECONDS_MAX = 0.2


def encoder(value):
    """Instants and bytes, as the protocol writes them."""
    if isinstance(value, datetime):
        text = value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
        return {"$instant": text + "Z"}
    if isinstance(value, (bytes, bytearray)):
        return {"$octets": base64.b64encode(value).decode()}
    raise TypeError(type(value))


def decoder(members):
    """The other way round."""
    try:
        if set(members) == {"$instant"}:
            return datetime.fromisoformat(members["$instant"].replace("Z", "+00:00"))
        if set(members) == {"$octets"}:
            return base64.b64decode(members["$octets"], validate=True)
    except ValueError:
        pass  # an entry of the function's own
    return members


def escaped(value):
    """What a service has said, with a `$` more where its only name might mean something."""
    if isinstance(value, list):
        return [escaped(each) for each in value]
    if not isinstance(value, dict):
        return value
    more = "$" if len(value) == 1 and next(iter(value))[:1] == "$" else ""
    return {more + name: escaped(each) for name, each in value.items()}


class Outcome:
    """What a service answers: `meta` and, where there is one, a readable body of `length`."""

    def __init__(self, status, meta, body=None, length=None):
        self.status = status
        self.meta = meta
        self.body = body
        self.length = length


class Upload:
    """A call whose body comes in pieces."""

    def __init__(self, meta):
        self.meta = meta
        self.data = bytearray()


class Download:
    """A body on its way to the guest."""

    def __init__(self, body, length):
        self.body = body
        self.left = length
        self.held = None
        self.ahead = None


class Session:
    """One instance's channel."""

    def __init__(self, sock, service, guest_slots=64, host_slots=64, piece_slots=4, threads=12):
        self.sock = sock
        self.service = service
        self.guest_slots = guest_slots
        self.host_slots = host_slots
        self.piece_slots = piece_slots
        self.pool = ThreadPoolExecutor(threads)
        self.lock = threading.RLock()
        self.room = threading.Condition(self.lock)
        self.epoch = 0x1_0000_0001
        self.replies = queue.Queue()
        self.bells = 0
        self.log = []
        self.greeted = threading.Event()

    # Greeting and frames.

    def make_region(self):
        """A new memfd and an empty everything."""
        at = 4096
        places = []
        for size in (
            ENTRIES * 64,
            ENTRIES * 64,
            META_BYTES,
            META_BYTES,
            self.guest_slots * SLOT_BYTES,
            self.host_slots * SLOT_BYTES,
        ):
            places.append(at)
            at += size
        self.size = at
        self.epoch += 1
        descriptor = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, at)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.memory = mmap.mmap(descriptor, at)
        self.view = memoryview(self.memory)
        self.words = self.view.cast("I")
        HEADER.pack_into(
            self.view,
            0,
            MAGIC,
            1,
            4096,
            self.epoch,
            at,
            places[0],
            ENTRIES,
            places[1],
            ENTRIES,
            places[2],
            META_BYTES,
            places[3],
            META_BYTES,
            places[4],
            self.guest_slots,
            places[5],
            self.host_slots,
            SLOT_BYTES,
        )
        self.places = places
        self.meta = Extents(META_BYTES // META_UNIT)
        self.slots = Extents(self.host_slots)
        self.taken = 0
        self.tail = 0
        self.uploads = {}
        self.downloads = {}
        self.token = 0
        self.tokens = {}
        return descriptor

    def send(self, kind, content, descriptors=()):
        """One frame."""
        data = struct.pack("<IB", len(content) + 1, kind) + content
        with self.lock:
            if descriptors:
                socket.send_fds(self.sock, [data], list(descriptors))
            else:
                self.sock.sendall(data)

    def run(self):
        """Serves until the channel ends."""
        pending = b""
        try:
            while True:
                if self.greeted.is_set():
                    self.words[576 // 4] = 1
                    self.drain()
                data = self.sock.recv(65536)
                if not data:
                    break
                if self.greeted.is_set():
                    self.words[576 // 4] = 0
                pending += data
                while len(pending) >= 5:
                    (length,) = struct.unpack_from("<I", pending)
                    if len(pending) < 4 + length:
                        break
                    self.frame(pending[4], pending[5 : 4 + length])
                    pending = pending[4 + length :]
        except OSError as error:
            self.log.append("the channel ended: %s" % error)
        finally:
            self.pool.shutdown(wait=False, cancel_futures=True)
            self.sock.close()
            self.replies.put(None)

    def frame(self, kind, content):
        """What a frame asks for."""
        if kind == 1:
            version, _, nonce = struct.unpack("<HHQ", content)
            descriptor = self.make_region()
            welcome = struct.pack("<HHQQQ", version, 0, nonce, self.epoch, self.size)
            self.send(2, welcome, [descriptor])
            os.close(descriptor)
            self.greeted.set()
        elif kind == 3:
            self.bells += 1
            self.drain()
        elif kind == 5:
            head, _, result = content.partition(b"\0")
            head = json.loads(head)
            if "result_slot" in head:
                result = bytes(self.guest(head["result_slot"], head["result_bytes"]))
            self.drain()
            self.replies.put((head, result))

    def invoke(self, head, event):
        """Sends an invocation; its event in slots where it is large."""
        head = dict(head, event_bytes=len(event))
        if len(event) > 60000:
            with self.lock:
                count = -(-len(event) // SLOT_BYTES)
                first = self.slots.take(count)
                assert first >= 0
                self.host(first, len(event))[:] = event
                head["event_slot"] = first
                self.event = (first, count)
            event = b""
        self.send(4, json.dumps(head).encode() + b"\0" + event)

    # Memory.

    def guest(self, slot, length):
        """Bytes of the guest's slots."""
        at = self.places[4] + slot * SLOT_BYTES
        return self.view[at : at + length]

    def host(self, slot, length):
        """Bytes of the host's slots."""
        at = self.places[5] + slot * SLOT_BYTES
        return self.view[at : at + length]

    # Submissions.

    def drain(self):
        """Takes what was submitted."""
        with self.lock:
            while self.words[256 // 4] != self.taken:
                at = self.places[0] + (self.taken & (ENTRIES - 1)) * 64
                fields = SUBMISSION.unpack(bytes(self.view[at : at + 64]))
                self.taken = (self.taken + 1) & 0xFFFFFFFF
                self.words[320 // 4] = self.taken
                self.submission(*fields)

    def submission(self, call, operation, flags, epoch, meta, meta_bytes, slot, body_bytes, token):
        """One descriptor."""
        assert epoch == self.epoch & 0xFFFFFFFF, "another epoch"
        assert meta + meta_bytes <= META_BYTES and flags & ~MORE == 0
        if operation in (1, 6):
            at = self.places[2] + meta
            text, _, inline = bytes(self.view[at : at + meta_bytes]).partition(b"\0")
            assert len(text) <= TEXT_BYTES_MAX
            said = json.loads(text, object_hook=decoder)
            upload = Upload(said)
            upload.is_request = operation == 6
            if said.get("inline"):
                assert len(inline) == said["body_bytes"] and not body_bytes
                upload.data += inline
            self.uploads[call] = upload
            self.piece(call, upload, flags, slot, body_bytes)
        elif operation == 2:
            upload = self.uploads.get(call)
            if upload is not None:
                self.piece(call, upload, flags, slot, body_bytes, True)
        elif operation == 3:
            download = self.tokens[token]
            self.free(download)
            self.pool.submit(self.guarded, call, self.next_piece, call, token, download)
        elif operation == 4:
            self.release(token)
        elif operation == 5:
            if self.uploads.pop(call, None) is not None:
                error = {"error": {"Code": "Cancelled", "Message": "cancelled"}}
                self.complete(call, 2, 0, error, None, 0, 0)
        else:
            raise AssertionError("operation %d" % operation)

    def piece(self, call, upload, flags, slot, body_bytes, part=False):
        """Bytes of a body that is sent."""
        if body_bytes:
            assert slot * SLOT_BYTES + body_bytes <= self.guest_slots * SLOT_BYTES
            upload.data += self.guest(slot, body_bytes)
        if flags & MORE or part:
            self.push(call, 0, PART, 0, 0, 0, 0, 0, 0)
        if not flags & MORE:
            del self.uploads[call]
            assert len(upload.data) == upload.meta.get("body_bytes", 0)
            self.pool.submit(self.guarded, call, self.perform, call, upload)

    def guarded(self, call, function, *arguments):
        """Nothing that goes wrong in a thread is lost."""
        try:
            function(*arguments)
        except Exception as error:
            self.log.append(repr(error))
            # A body that breaks off; everything else is a fault of this host.
            broken = type(error).__name__ in ("ResponseStreamingError", "IncompleteReadError")
            code = "Broken" if broken else "Internal"
            meta = {"error": {"Code": code, "Message": repr(error)}}
            self.complete(call, 2, 0, meta, None, 0, 0)

    def perform(self, call, upload):
        """Asks the service and answers."""
        meta = upload.meta
        body = bytes(upload.data) if "body_bytes" in meta else None
        if upload.is_request:
            outcome = self.service.request(meta, body or b"")
        else:
            outcome = self.service(
                meta["service"],
                meta["operation"],
                meta["parameters"],
                body,
                (meta.get("region"), True) if meta.get("unsigned") else meta.get("region"),
            )
        if outcome.body is None:
            self.complete(call, outcome.status, 0, outcome.meta, None, 0, 0)
            return
        download = Download(outcome.body, outcome.length)
        with self.lock:
            self.token += 1
            token = self.token
            self.tokens[token] = download
        self.next_piece(call, token, download, outcome.meta)

    def next_piece(self, call, token, download, meta=None):
        """The next bytes of a body into slots of the host."""
        wanted = self.piece_slots * SLOT_BYTES
        data = download.ahead if download.ahead is not None else read(download.body, wanted)
        count = -(-len(data) // SLOT_BYTES)
        with self.room:
            first = 0
            while count:
                first = self.slots.take(count)
                if first >= 0:
                    break
                if not self.room.wait(ROOM_SECONDS_MAX):
                    download.ahead = data
                    self.refuse(call, token, meta)
                    return
            if token not in self.tokens:
                if count:
                    self.slots.give(first, count)
                released = {"error": {"Code": "Invalid", "Message": "the body was released"}}
                self.complete(call, 2, 0, released, None, 0, 0)
                return
            if count:
                self.host(first, len(data))[:] = data
                download.held = (first, count)
            if download.left is not None:
                download.left -= len(data)
        download.ahead = read(download.body, wanted) if len(data) == wanted else b""
        more = bool(download.ahead)
        left = UNKNOWN if download.left is None else download.left
        self.complete(call, 0, MORE if more else 0, meta, (first, len(data)), token, left)

    def refuse(self, call, token, meta):
        """There is no room: the guest holds too much. A call is begun again, a READ too."""
        if meta is not None:
            self.tokens.pop(token)
        self.push(call, 3, 0, 0, 0, 0, 0, 0, 0)

    def free(self, download):
        """Slots of the piece before."""
        with self.room:
            if download.held:
                self.slots.give(*download.held)
                download.held = None
            for extents in download.__dict__.pop("metas", []):
                self.meta.give(*extents)
            self.room.notify_all()

    def release(self, token):
        """A token's slots and meta are free."""
        with self.room:
            found = self.tokens.pop(token, None)
            if found is None:
                return  # of a READ that nobody waited for
            if isinstance(found, Download):
                self.free(found)
                if hasattr(found.body, "close"):
                    found.body.close()
            else:
                self.meta.give(*found)
            self.room.notify_all()

    # Completions.

    def complete(self, call, status, flags, meta, extent, token, left):
        """One completion, with its meta in the arena."""
        text = json.dumps(escaped(meta), default=encoder).encode() if meta is not None else b""
        with self.room:
            offset = 0
            if text:
                units = -(-len(text) // META_UNIT)
                while True:
                    first = self.meta.take(units)
                    if first >= 0:
                        break
                    self.room.wait()
                offset = first * META_UNIT
                at = self.places[3] + offset
                self.view[at : at + len(text)] = text
                if not token:
                    self.token += 1
                    token = self.token
                    self.tokens[token] = (first, units)
                else:
                    self.tokens[token].__dict__.setdefault("metas", []).append((first, units))
            slot, body_bytes = extent or (0, 0)
            self.push(call, status, flags, offset, len(text), slot, body_bytes, token, left)

    def push(self, call, status, flags, meta, meta_bytes, slot, body_bytes, token, left):
        """Into the ring; BELL where the guest sleeps."""
        with self.lock:
            assert (self.tail - self.words[448 // 4]) & 0xFFFFFFFF < ENTRIES, "ring is full"
            at = self.places[1] + (self.tail & (ENTRIES - 1)) * 64
            COMPLETION.pack_into(
                self.view,
                at,
                call,
                status,
                flags,
                self.epoch & 0xFFFFFFFF,
                meta,
                meta_bytes,
                slot,
                body_bytes,
                token,
                left,
            )
            self.tail = (self.tail + 1) & 0xFFFFFFFF
            self.words[384 // 4] = self.tail
            if self.words[512 // 4]:
                self.send(3, b"")

    def idle(self):
        """Whether everything of the host was given back."""
        with self.lock:
            return self.slots.idle() and self.meta.idle() and not self.tokens


def read(body, size):
    """Exactly `size` bytes but at the end."""
    out = b""
    while len(out) < size:
        data = body.read(size - len(out))
        if not data:
            break
        out += data
    return out


class BotoService:
    """Carries calls to an endpoint with the real botocore."""

    def __init__(self, endpoint):
        import botocore.session
        from botocore.config import Config

        self.endpoint = endpoint
        self.session = botocore.session.Session()
        self.session.set_credentials("testing", "testing")
        self.config = Config(parameter_validation=False, max_pool_connections=32)
        self.clients = {}
        self.lock = threading.Lock()

    def client(self, service, region):
        """A client, made once; of a region, or of a region and a version of its signatures."""
        from botocore import UNSIGNED

        with self.lock:
            key = (service, region)
            if key not in self.clients:
                config = self.config
                if isinstance(region, tuple):
                    region, version = region
                    version = UNSIGNED if version is True else version
                    config = config.merge(type(config)(signature_version=version))
                self.clients[key] = self.session.create_client(
                    service,
                    region_name=region or "us-east-1",
                    endpoint_url=self.endpoint,
                    config=config,
                )
            return self.clients[key]

    def __call__(self, service, operation, parameters, body, region):
        from botocore import exceptions

        if operation.startswith("GeneratePresigned"):
            # As the host: with Version 4, or not at all.
            parameters = dict(parameters)
            version = parameters.pop("SignatureVersion", "s3v4")
            if version not in ("s3v4", "v4"):
                return host_failure("Unsupported", 'Config(signature_version="s3v4"): %s' % version)
            region = (region[0] if isinstance(region, tuple) else region, "s3v4")
        client = self.client(service, region)
        try:
            return self.call(client, operation, dict(parameters), body)
        except exceptions.ClientError as error:
            return failure(error)
        except exceptions.ReadTimeoutError as error:
            return host_failure("Timeout", error)
        except exceptions.EndpointConnectionError as error:
            return host_failure("Unavailable", error)
        except exceptions.ConnectionClosedError as error:
            return host_failure("Broken", error)
        except exceptions.BotoCoreError as error:
            return host_failure("Rejected", error)

    def call(self, client, operation, parameters, body):
        """One operation."""
        if operation == "GeneratePresignedUrl":
            return self.presigned(client, parameters)
        if operation == "GeneratePresignedPost":
            said = client.generate_presigned_post(**parameters)
            return Outcome(0, {"result": said, "http_status": 200})
        if "CopySource" in parameters:
            parameters["CopySource"] = copy_source(parameters["CopySource"])
        if body is not None:
            shape = client.meta.service_model.operation_model(operation).input_shape
            parameters[shape.serialization["payload"]] = body
        found = client._make_api_call(operation, parameters)
        metadata = found.pop("ResponseMetadata")
        meta = {
            "headers": metadata["HTTPHeaders"],
            "http_status": metadata["HTTPStatusCode"],
            "request_id": metadata.get("RequestId"),
            "retries": metadata["RetryAttempts"],
            "max_attempts_reached": metadata.get("MaxAttemptsReached", False),
        }
        if "ChecksumAlgorithm" in metadata:
            meta["checksum_algorithm"] = metadata["ChecksumAlgorithm"]
        streamed = next((n for n, v in found.items() if hasattr(v, "iter_chunks")), None)
        stream = found.pop(streamed) if streamed else None
        if operation == "SelectObjectContent":
            stream = found.pop("Payload")._raw_stream  # events are taken apart in the guest
        meta["result"] = found
        length = metadata["HTTPHeaders"].get("content-length")
        return Outcome(0, meta, stream, int(length) if length else None)

    def presigned(self, client, asked):
        """A URL."""
        from botocore import xform_name

        names = {operation: name for name, operation in client.meta.method_to_api_mapping.items()}
        parameters = asked["Parameters"]
        if "CopySource" in parameters:
            parameters["CopySource"] = copy_source(parameters["CopySource"])
        url = client.generate_presigned_url(
            names.get(asked["Operation"], xform_name(asked["Operation"])),
            parameters,
            asked["ExpiresIn"],
            asked.get("HttpMethod"),
        )
        return Outcome(0, {"result": {"Url": url}, "http_status": 200})


def copy_source(text):
    """The header's value as botocore wants it, which encodes it again."""
    from urllib.parse import unquote

    path, mark, version = text.partition("?versionId=")
    bucket, slash, key = path.partition("/")
    if not slash:
        return unquote(text)
    out = {"Bucket": unquote(bucket), "Key": unquote(key)}
    if mark:
        out["VersionId"] = version
    return out


def failure(error):
    """The service's error."""
    metadata = error.response.get("ResponseMetadata", {})
    return Outcome(
        1,
        {
            "error": error.response.get("Error", {}),
            "operation": error.operation_name,
            "http_status": metadata.get("HTTPStatusCode"),
            "headers": metadata.get("HTTPHeaders", {}),
            "request_id": metadata.get("RequestId"),
            "retries": metadata.get("RetryAttempts", 0),
            "max_attempts_reached": metadata.get("MaxAttemptsReached", False),
            "members": {
                name: value
                for name, value in error.response.items()
                if name not in ("Error", "ResponseMetadata")
            },
        },
    )


def host_failure(code, error):
    """What is not the service's."""
    return Outcome(2, {"error": {"Code": code, "Message": str(error)}})


def main():
    """Serves one channel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    arguments = parser.parse_args()
    session = Session(socket.socket(fileno=arguments.fd), BotoService(arguments.endpoint))
    session.run()
    for line in session.log:
        print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
