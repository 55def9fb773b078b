"""KMS."""

from .rows import Given, Row, Values, call, pages, use

SERVICE = "kms"
NONE = "00000000-0000-0000-0000-000000000000"
STAND_INS = {name: NONE for name in ("key", "pair", "mac")}
STAND_INS.update(alias="alias/own", sealed=bytes(range(150)))
KEY, PAIR, MAC, ALIAS = ({"KeyId": Given(name)} for name in ("key", "pair", "mac", "alias"))


def setup(client):
    """A key with an alias, one to sign with, and one for codes: where they are used, as moto makes a
    pair of large primes for each."""
    made = Values()

    def key(**given):
        return lambda: client.create_key(**given)["KeyMetadata"]["KeyId"]

    def alias():
        client.create_alias(AliasName="alias/own", TargetKeyId=made["key"])
        return "alias/own"

    def sealed():
        return client.encrypt(KeyId=made["key"], Plaintext=b"sealed")["CiphertextBlob"]

    made.update(key=key(Description="d"), alias=alias, sealed=sealed)
    made["pair"] = key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")
    made["mac"] = key(KeySpec="HMAC_256", KeyUsage="GENERATE_VERIFY_MAC")
    return made


def sealed(plain, context=None, other=None):
    """Encrypted bytes can be decrypted; with another context they cannot."""

    def there_and_back(trial, values):
        kms = trial.client("kms")
        given = {} if context is None else {"EncryptionContext": context}
        blob = kms.encrypt(KeyId=values["alias"], Plaintext=plain, **given)["CiphertextBlob"]
        if other is not None:
            given = {"EncryptionContext": other}
        return kms.decrypt(CiphertextBlob=blob, **given)

    return use(there_and_back)


def signed(trial, values):
    """A signature, verified."""
    kms = trial.client("kms")
    given = {"KeyId": values["pair"], "Message": b"\x00m", "SigningAlgorithm": "ECDSA_SHA_256"}
    signature = kms.sign(**given)["Signature"]
    return kms.verify(Signature=signature, **given)["SignatureValid"]


def coded(trial, values):
    """A code, verified."""
    kms = trial.client("kms")
    given = {"KeyId": values["mac"], "Message": b"m\xff", "MacAlgorithm": "HMAC_SHA_256"}
    code = kms.generate_mac(**given)["Mac"]
    return [len(code), kms.verify_mac(Mac=code, **given)["MacValid"]]


def data_key(method, **given):
    """Random keys: their lengths, and that the sealed one is the plain one."""

    def lengths(trial, values):
        kms = trial.client("kms")
        found = getattr(kms, method)(KeyId=values["alias"], **given)
        plain = kms.decrypt(CiphertextBlob=found["CiphertextBlob"])["Plaintext"]
        return [len(plain), found.get("Plaintext", plain) == plain, sorted(found)]

    return use(lengths)


def again(trial, values):
    """Sealed by another key, which opens it."""
    kms = trial.client("kms")
    other = kms.create_key()["KeyMetadata"]["KeyId"]
    blob = kms.re_encrypt(CiphertextBlob=values["sealed"], DestinationKeyId=other)["CiphertextBlob"]
    return kms.decrypt(CiphertextBlob=blob)["Plaintext"]


POLICY = '{"Version": "2012-10-17", "Statement": []}'
ROWS = {
    "seal: bytes": sealed(bytes(range(256))),
    "seal: text": sealed("\u00e9\u4e2d"),
    "seal: context": sealed(b"x", {"a": "\u00e9", "b": "2"}, {"b": "2", "a": "\u00e9"}),
    "seal: another context": sealed(b"x", {"a": "1"}, {"a": "2"}),
    "seal: the most": sealed(b"x" * 4096),
    "seal: too large": call("encrypt", Plaintext=b"x" * 4097, **KEY),
    "seal: empty": call("encrypt", Plaintext=b"", **KEY),
    "seal: no such key": call("encrypt", KeyId=NONE, Plaintext=b"x"),
    "seal: no such alias": call("encrypt", KeyId="alias/none", Plaintext=b"x"),
    "seal: no key": call("encrypt", KeyId="a b", Plaintext=b"x"),
    "seal: a number": call("encrypt", Plaintext=5, **KEY),
    "seal: context of numbers": call("encrypt", Plaintext=b"x", EncryptionContext={"a": 1}, **KEY),
    "open: garbage": call("decrypt", CiphertextBlob=b"x" * 100),
    "open: text": call("decrypt", CiphertextBlob="\u00e9"),
    "open: of the setup": call("decrypt", CiphertextBlob=Given("sealed")),
    "open: nothing": call("decrypt"),
    "seal again": use(again),
    "seal again: no such key": call(
        "re_encrypt", CiphertextBlob=Given("sealed"), DestinationKeyId=NONE
    ),
    "data key: 256": data_key("generate_data_key", KeySpec="AES_256"),
    "data key: 128, sealed": data_key("generate_data_key_without_plaintext", KeySpec="AES_128"),
    "data key: bytes": data_key("generate_data_key", NumberOfBytes=7),
    "data key: too many": call("generate_data_key", NumberOfBytes=2000, **KEY),
    "data key: none": call("generate_data_key", NumberOfBytes=0, **KEY),
    "data key: two sizes": call("generate_data_key", NumberOfBytes=1, KeySpec="AES_256", **KEY),
    "data key: no size": call("generate_data_key", **KEY),
    "data key: wrong size": call("generate_data_key", KeySpec="AES_1", **KEY),
    "random: length": use(
        lambda trial, _: len(trial.client("kms").generate_random(NumberOfBytes=32)["Plaintext"])
    ),
    "random: too much": call("generate_random", NumberOfBytes=5000),
    "random: text": call("generate_random", NumberOfBytes="5"),
    "sign": use(signed),
    "sign: other bytes": call(
        "verify", Message=b"x", Signature=b"y" * 64, SigningAlgorithm="ECDSA_SHA_256", **PAIR
    ),
    "sign: wrong algorithm": call(
        "sign", Message=b"x", SigningAlgorithm="RSASSA_PSS_SHA_256", **PAIR
    ),
    "sign: with a key for sealing": call(
        "sign", Message=b"x", SigningAlgorithm="ECDSA_SHA_256", **KEY
    ),
    "sign: no message": call("sign", Message=b"", SigningAlgorithm="ECDSA_SHA_256", **PAIR),
    "sign: public key": use(
        lambda trial, values: len(
            trial.client("kms").get_public_key(KeyId=values["pair"])["PublicKey"]
        )
    ),
    "code": use(coded),
    "code: other bytes": call(
        "verify_mac", Message=b"x", Mac=b"y", MacAlgorithm="HMAC_SHA_256", **MAC
    ),
    "code: with a key for sealing": call(
        "generate_mac", Message=b"x", MacAlgorithm="HMAC_SHA_256", **KEY
    ),
    "key: described": call("describe_key", **KEY),
    "key: by its alias": call("describe_key", **ALIAS),
    "key: by an ARN": call(
        "describe_key", KeyId=Given("key", "arn:aws:kms:us-east-1:123456789012:key/%s")
    ),
    "key: none": call("describe_key", KeyId=NONE),
    "key: none by an ARN": call(
        "describe_key", KeyId="arn:aws:kms:us-east-1:123456789012:key/" + NONE
    ),
    "key: made": call(
        "create_key",
        Description="\u00e9 & \u4e2d",
        Tags=[{"TagKey": "a", "TagValue": ""}],
        Policy=POLICY,
        MultiRegion=True,
    ),
    "key: wrong spec": call("create_key", KeySpec="DES"),
    "key: wrong usage": call("create_key", KeySpec="HMAC_256", KeyUsage="SIGN_VERIFY"),
    "key: external": call("create_key", Origin="EXTERNAL"),
    "key: list": use(
        lambda trial, values: [
            len(values["key"]),
            len(trial.client("kms").list_keys(Limit=10)["Keys"]),
        ]
    ),
    "key: list by pages": [
        call("describe_key", **KEY),
        call("describe_key", **MAC),
        pages("list_keys", PaginationConfig={"PageSize": 1}, search="length(Keys)"),
    ],
    "key: description": [
        call("update_key_description", Description="\u00fc", **KEY),
        call("describe_key", **KEY),
    ],
    "key: disabled": [
        call("disable_key", **KEY),
        call("describe_key", **KEY),
        call("enable_key", **KEY),
        call("describe_key", **KEY),
    ],
    "key: deleted": [
        call("schedule_key_deletion", PendingWindowInDays=7, **KEY),
        call("decrypt", CiphertextBlob=Given("sealed")),
        call("cancel_key_deletion", **KEY),
    ],
    "key: deleted too soon": call("schedule_key_deletion", PendingWindowInDays=1, **KEY),
    "rotation": [
        call("enable_key_rotation", RotationPeriodInDays=100, **KEY),
        call("get_key_rotation_status", **KEY),
        call("disable_key_rotation", **KEY),
    ],
    "rotation: of a pair": call("enable_key_rotation", **PAIR),
    "rotation: of none": call("get_key_rotation_status", KeyId=NONE),
    "alias: made": [
        call("create_alias", AliasName="alias/a/b_c-d", TargetKeyId=Given("key")),
        call("list_aliases", **KEY),
    ],
    "alias: there already": call(
        "create_alias", AliasName=Given("alias"), TargetKeyId=Given("key")
    ),
    "alias: reserved": call("create_alias", AliasName="alias/aws/x", TargetKeyId=Given("key")),
    "alias: without its start": call("create_alias", AliasName="own", TargetKeyId=Given("key")),
    "alias: bad name": call("create_alias", AliasName="alias/a b", TargetKeyId=Given("key")),
    "alias: of an alias": call("create_alias", AliasName="alias/x", TargetKeyId=Given("alias")),
    "alias: of none": call("create_alias", AliasName="alias/x", TargetKeyId=NONE),
    "alias: moved": [
        call("update_alias", AliasName=Given("alias"), TargetKeyId=Given("mac")),
        call("describe_key", **ALIAS),
    ],
    "alias: deleted": [
        call("delete_alias", AliasName=Given("alias")),
        call("describe_key", KeyId="alias/own"),
    ],
    "alias: none is deleted": call("delete_alias", AliasName="alias/none"),
    "policy": [
        call("put_key_policy", PolicyName="default", Policy=POLICY, **KEY),
        call("get_key_policy", PolicyName="default", **KEY),
        call("list_key_policies", **KEY),
    ],
    "policy: wrong name": call("get_key_policy", PolicyName="own", **KEY),
    "policy: of none": call("put_key_policy", PolicyName="default", Policy=POLICY, KeyId=NONE),
    "tags": [
        call("tag_resource", Tags=[{"TagKey": "a", "TagValue": "\u00e9"}], **KEY),
        call("untag_resource", TagKeys=["none"], **KEY),
        call("list_resource_tags", **KEY),
    ],
    "tags: of none": call("list_resource_tags", KeyId=NONE),
    "grant": [
        call(
            "create_grant",
            GranteePrincipal="arn:aws:iam::123456789012:role/r",
            Operations=["Decrypt", "Encrypt"],
            Constraints={"EncryptionContextSubset": {"a": "\u00e9"}},
            **KEY,
        ),
        call("list_grants", **KEY),
    ],
    "grant: none": call("revoke_grant", GrantId="none", **KEY),
    "region: another": Row(call("describe_key", **ALIAS), region="eu-south-1"),
    "config: unsigned": Row(call("list_aliases"), config={"signature_version": "unsigned"}),
    "unknown member": call("describe_key", Key="x"),
}
