"""A server with MongoDB's protocol, FerretDB: the store of two of vSwarm's benchmarks."""

import os
import subprocess

import gridfs
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from cloud import free_port, until

ANSWER_MS_MAX = 2000


class Database:
    """FerretDB with SQLite below it, whose files go with the scratch directory."""

    def __init__(self, program, log, scratch):
        place = os.path.join(scratch, "database")
        os.makedirs(place)
        address = "127.0.0.1:%d" % free_port()
        self.url = "mongodb://%s/?serverSelectionTimeoutMS=%d" % (address, ANSWER_MS_MAX)
        self._process = subprocess.Popen(
            [program, address, place], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        self._client = MongoClient(self.url)
        until("FerretDB answers", self._answers)

    def _answers(self):
        if self._process.poll() is not None:
            raise RuntimeError("FerretDB has ended with status %d" % self._process.returncode)
        try:
            return self._client.admin.command("ping")
        except PyMongoError:
            return None

    def fill(self, files):
        """Empties it, and puts files into GridFS: from a database's name and a file's to bytes."""
        for name in self._client.list_database_names():
            if name not in ("admin", "config", "local"):
                self._client.drop_database(name)
        for (name, file), body in files.items():
            gridfs.GridFS(self._client[name]).put(body, filename=file)

    def close(self):
        """Ends the server."""
        self._client.close()
        self._process.terminate()
        self._process.wait()
