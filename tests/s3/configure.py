"""Configures Ceph's S3 tests for the built-in store.

    configure.py s3tests.conf.SAMPLE DIRECTORY

writes DIRECTORY/s3.conf and DIRECTORY/keys. The sample's users keep their keys. The store has one
owner, whichever key signs.
"""

import configparser
import os
import sys

OWNER = "unlade"


def main(sample, directory):
    config = configparser.RawConfigParser()
    config.read(sample)
    config.set("DEFAULT", "host", "127.0.0.1")
    config.set("s3 main", "display_name", OWNER)
    config.set("s3 main", "user_id", OWNER)
    config.set("s3 main", "api_name", "")
    pairs = []
    for section in config.sections():
        if config.has_option(section, "access_key"):
            pairs.append((config.get(section, "access_key"), config.get(section, "secret_key")))
    with open(os.path.join(directory, "s3.conf"), "w") as file:
        config.write(file)
    with open(os.path.join(directory, "keys"), "w") as file:
        file.writelines(f"{key} {secret}\n" for key, secret in pairs)


if __name__ == "__main__":
    main(*sys.argv[1:])
