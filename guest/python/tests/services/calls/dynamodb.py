"""DynamoDB."""

import datetime
from decimal import Decimal

from .rows import Row, call, pages, use, wait

SERVICE = "dynamodb"
STAND_INS = {}
KEY = {"id": {"S": "a"}, "at": {"N": "1"}}
OTHER = {"id": {"S": "new"}, "at": {"N": "1"}}
ON = {"TableName": "orders"}
ITEM = dict(ON, Key=KEY)
INDEX = {
    "IndexName": "kinds",
    "KeySchema": [{"AttributeName": "kind", "KeyType": "HASH"}],
    "Projection": {"ProjectionType": "ALL"},
}


def setup(client):
    """A table with a range key, an index and some items."""
    schema = [
        {"AttributeName": "id", "KeyType": "HASH"},
        {"AttributeName": "at", "KeyType": "RANGE"},
    ]
    kinds = (("id", "S"), ("at", "N"), ("kind", "S"))
    client.create_table(
        TableName="orders",
        KeySchema=schema,
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": t} for n, t in kinds],
        GlobalSecondaryIndexes=[INDEX],
        BillingMode="PAY_PER_REQUEST",
    )
    items = [
        {"id": {"S": name}, "at": {"N": str(at)}, "kind": {"S": "even" if at % 2 == 0 else "odd"}}
        for name in ("a", "b")
        for at in range(1, 8)
    ]
    items[0].update(n={"N": "5"}, l={"L": [{"S": "x"}, {"N": "2"}]}, m={"M": {"k": {"S": "v"}}})
    puts = [{"PutRequest": {"Item": item}} for item in items]
    client.batch_write_item(RequestItems={"orders": puts})


def put(**attributes):
    """An item is put, and read again."""
    step = call("put_item", TableName="orders", Item=dict(OTHER, **attributes))
    return [step, call("get_item", TableName="orders", Key=OTHER, ConsistentRead=True)]


def update(expression, names=None, returned="ALL_NEW", condition=None, **values):
    """An update of an item that is there."""
    more = {"ReturnValues": returned}
    if names:
        more["ExpressionAttributeNames"] = names
    if condition:
        more["ConditionExpression"] = condition
    if values:
        more["ExpressionAttributeValues"] = {":" + name: value for name, value in values.items()}
    return call("update_item", UpdateExpression=expression, **more, **ITEM)


def query(condition, method="query", **more):
    """A query of the orders of `a`, or of more."""
    values = {":a": {"S": "a"}}
    values.update(more.pop("values", {}))
    more.update(KeyConditionExpression=condition, ExpressionAttributeValues=values)
    step = pages if method == "pages" else call
    return step("query", TableName="orders", **more)


def scan(expression, values, **more):
    """A scan with a filter."""
    more.update(FilterExpression=expression, ExpressionAttributeValues=values)
    return call("scan", TableName="orders", **more)


def table(trial):
    """The resource."""
    return trial.boto3.resource("dynamodb", region_name="us-east-1").Table("orders")


def putting(**attributes):
    """An item of Python's types, by the resource."""
    return lambda trial, _: table(trial).put_item(Item=dict({"id": "r", "at": 1}, **attributes))


def reading(trial, _):
    """An item as the resource has it, and the types of its values."""
    kinds = {"s": {"x", "y"}, "n": Decimal("1.50"), "b": b"\x00\xff", "l": [1, None, True]}
    table(trial).put_item(Item=dict({"id": "r", "at": 1}, **kinds))
    found = table(trial).get_item(Key={"id": "r", "at": 1})["Item"]
    return {
        name: [type(value).__name__, repr(value)] for name, value in found.items() if name != "s"
    }


def conditions(trial, _):
    """Expressions that boto3 builds."""
    from boto3.dynamodb.conditions import Attr, Key

    key = Key("id").eq("a") & Key("at").between(2, 6)
    return table(trial).query(
        KeyConditionExpression=key, FilterExpression=Attr("kind").ne("odd") & ~Attr("n").exists()
    )


def writing(trial, _):
    """A batch writer with an item twice."""
    with table(trial).batch_writer(overwrite_by_pkeys=["id", "at"]) as batch:
        for at in (1, 2, 2, 3):
            batch.put_item(Item={"id": "w", "at": at})
        batch.delete_item(Key={"id": "a", "at": 1})
    return table(trial).scan(Select="COUNT")["Count"]


TRANSACTED = {"TableName": "orders", "Key": OTHER}
TIME = {"enabled": {"Enabled": True, "AttributeName": "expires"}}
ROWS = {
    "put: numbers": put(
        a={"N": "-1.5e-10"}, b={"N": "123456789012345678901234567890"}, c={"N": "0"}
    ),
    "put: unicode": put(a={"S": "\u00e9\u4e2d\U0001f600\u0000"}, **{"\u00fc b.c#d": {"S": "x"}}),
    "put: binary": put(a={"B": bytes(range(256))}, b={"BS": [b"\x00", b"\xff\xfe"]}, c={"B": b"x"}),
    "put: bytearray": put(a={"B": bytearray(b"\x01\x02")}),
    "put: sets": put(a={"SS": ["x"]}, b={"NS": ["1"]}, c={"BS": [b"1"]}),
    "put: nested": put(
        a={"M": {"b": {"L": [{"M": {"c": {"L": []}}}, {"NULL": True}, {"BOOL": False}]}}}
    ),
    "put: empty values": put(a={"S": ""}, b={"B": b""}, c={"M": {}}, d={"L": []}),
    "put: empty set": put(a={"SS": []}),
    "put: large": put(a={"S": "\u00e9" * 100_000}),
    "put: too large": put(a={"S": "x" * 410_000}),
    "put: empty key": call("put_item", TableName="orders", Item=dict(OTHER, id={"S": ""})),
    "put: key of another type": call(
        "put_item", TableName="orders", Item=dict(OTHER, at={"S": "x"})
    ),
    "put: no range key": call("put_item", TableName="orders", Item={"id": {"S": "x"}}),
    "put: returns the old one": call(
        "put_item",
        TableName="orders",
        Item=KEY,
        ReturnValues="ALL_OLD",
        ReturnConsumedCapacity="TOTAL",
    ),
    "put: condition fails and returns it": call(
        "put_item",
        TableName="orders",
        Item=KEY,
        ConditionExpression="attribute_not_exists(#i)",
        ExpressionAttributeNames={"#i": "id"},
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    ),
    "put: expected of the first API": call(
        "put_item", TableName="orders", Item=KEY, Expected={"n": {"Value": {"N": "6"}}}
    ),
    "get: projection": call(
        "get_item",
        ProjectionExpression="#l[1], m.k, missing",
        ExpressionAttributeNames={"#l": "l"},
        **ITEM,
    ),
    "get: attributes of the first API": call("get_item", AttributesToGet=["n"], **ITEM),
    "get: unused name": call(
        "get_item", ProjectionExpression="n", ExpressionAttributeNames={"#x": "x"}, **ITEM
    ),
    "get: no table": call("get_item", TableName="none", Key=KEY),
    "get: table by its ARN": call(
        "get_item", TableName="arn:aws:dynamodb:us-east-1:123456789012:table/orders", Key=KEY
    ),
    "get: table of another region": call(
        "get_item", TableName="arn:aws:dynamodb:eu-west-1:123456789012:table/orders", Key=KEY
    ),
    "get: short name of a table": call("get_item", TableName="x", Key=KEY),
    "get: key incomplete": call("get_item", TableName="orders", Key={"id": {"S": "a"}}),
    "get: unknown member": call("get_item", Consistent=True, **ITEM),
    "get: wrong types": call("get_item", TableName=7, Key=[], ConsistentRead="yes"),
    "get: two types in a value": call(
        "get_item", TableName="orders", Key={"id": {"S": "a", "N": "1"}}
    ),
    "get: nothing": call("get_item"),
    "update: set and remove": update(
        "SET m.#k = :v, l[0] = :v REMOVE n", {"#k": "k"}, v={"S": "w\u00e9"}
    ),
    "update: add to a number and a set": update(
        "ADD n :one, s :s", one={"N": "-1"}, s={"SS": ["a"]}
    ),
    "update: delete of a set": [
        update("SET s = :s", s={"NS": ["1", "2"]}),
        update("DELETE s :s", s={"NS": ["2"]}),
    ],
    "update: functions": update(
        "SET l = list_append(l, :l), q = if_not_exists(q, :z)",
        l={"L": [{"BOOL": True}]},
        z={"N": "0"},
    ),
    "update: updated only": update("SET n = n - :x", returned="UPDATED_OLD", x={"N": "2.5"}),
    "update: condition holds": update(
        "SET n = :x", condition="n BETWEEN :a AND :b", x={"N": "1"}, a={"N": "1"}, b={"N": "9"}
    ),
    "update: condition fails": update("SET n = :x", condition="size(l) > :x", x={"N": "9"}),
    "update: syntax": update("SET n == :x", x={"N": "1"}),
    "update: key": update("SET id = :x", x={"S": "1"}),
    "update: reserved word": update("SET name = :x", x={"S": "1"}),
    "update: overlapping": update("SET m = :x, m.k = :x", x={"S": "1"}),
    "update: undefined value": update("SET n = :missing", x={"S": "1"}),
    "update: wrong operand": update("SET kind = kind + :x", x={"N": "1"}),
    "update: of the first API": call(
        "update_item",
        AttributeUpdates={"n": {"Action": "ADD", "Value": {"N": "1"}}},
        ReturnValues="ALL_NEW",
        **ITEM,
    ),
    "delete: returns": call("delete_item", ReturnValues="ALL_OLD", **ITEM),
    "delete: missing": call("delete_item", TableName="orders", Key=OTHER),
    "delete: condition": call(
        "delete_item",
        ConditionExpression="contains(kind, :x) OR attribute_type(n, :t)",
        ExpressionAttributeValues={":x": {"S": "zz"}, ":t": {"S": "S"}},
        **ITEM,
    ),
    "query: range": query("id = :a AND at > :n", values={":n": {"N": "4"}}),
    "query: backwards with a limit": query("id = :a", ScanIndexForward=False, Limit=3),
    "query: start key": query("id = :a", ExclusiveStartKey=KEY, Limit=2),
    "query: filter": query("id = :a", FilterExpression="kind = :k", values={":k": {"S": "odd"}}),
    "query: count": query("id = :a", Select="COUNT"),
    "query: index": query("kind = :a", IndexName="kinds", values={":a": {"S": "even"}}),
    "query: no such index": query("kind = :a", IndexName="nothing"),
    "query: condition without the key": query("at = :a"),
    "query: pages": query("id = :a", "pages", PaginationConfig={"PageSize": 3}),
    "query: pages to a limit": query(
        "id = :a", "pages", PaginationConfig={"MaxItems": 4, "PageSize": 3}
    ),
    "query: found by an expression": query("id = :a", "pages", search="Items[?n].n.N"),
    "scan: in and begins": scan(
        "id IN (:a, :c) AND begins_with(kind, :o)",
        {":a": {"S": "a"}, ":c": {"S": "c"}, ":o": {"S": "o"}},
    ),
    "scan: not": scan("NOT at <> :n", {":n": {"N": "2"}}),
    "scan: segment": call("scan", TableName="orders", Segment=0, TotalSegments=1, Limit=5),
    "scan: segment too large": call("scan", TableName="orders", Segment=3, TotalSegments=2),
    "scan: negative limit": call("scan", TableName="orders", Limit=0),
    "scan: pages": pages("scan", TableName="orders", PaginationConfig={"PageSize": 5}),
    "scan: pages from a token": pages(
        "scan", TableName="orders", PaginationConfig={"StartingToken": "no token"}
    ),
    "scan: of a filter of the first API": call(
        "scan",
        TableName="orders",
        ScanFilter={"at": {"ComparisonOperator": "GE", "AttributeValueList": [{"N": "6"}]}},
    ),
    "batch: get with a projection": call(
        "batch_get_item",
        RequestItems={"orders": {"Keys": [KEY, OTHER], "ProjectionExpression": "n"}},
    ),
    "batch: the same key twice": call(
        "batch_get_item", RequestItems={"orders": {"Keys": [KEY, KEY]}}
    ),
    "batch: no table": call("batch_get_item", RequestItems={"none": {"Keys": [KEY]}}),
    "batch: nothing": call("batch_write_item", RequestItems={}),
    "batch: puts and deletes": call(
        "batch_write_item",
        RequestItems={"orders": [{"PutRequest": {"Item": OTHER}}, {"DeleteRequest": {"Key": KEY}}]},
        ReturnConsumedCapacity="TOTAL",
    ),
    "batch: too many": call(
        "batch_write_item", RequestItems={"orders": [{"DeleteRequest": {"Key": KEY}}] * 26}
    ),
    "transaction: with a token": call(
        "transact_write_items",
        TransactItems=[{"Put": {"TableName": "orders", "Item": OTHER}}, {"Delete": ITEM}],
        ClientRequestToken="token-1",
    ),
    "transaction: with botocore's token": call(
        "transact_write_items",
        TransactItems=[{"ConditionCheck": dict(ITEM, ConditionExpression="attribute_exists(n)")}],
    ),
    "transaction: cancelled, with reasons": call(
        "transact_write_items",
        TransactItems=[
            {"Put": {"TableName": "orders", "Item": OTHER}},
            {
                "Update": dict(
                    ITEM,
                    UpdateExpression="SET n = :n",
                    ConditionExpression="n = :n",
                    ExpressionAttributeValues={":n": {"N": "7"}},
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            },
        ],
    ),
    "transaction: one item twice": call(
        "transact_write_items", TransactItems=[{"Delete": ITEM}, {"Delete": ITEM}]
    ),
    "transaction: gets": call(
        "transact_get_items", TransactItems=[{"Get": ITEM}, {"Get": TRANSACTED}]
    ),
    "transaction: empty": call("transact_get_items", TransactItems=[]),
    "statements: select": call(
        "execute_statement",
        Statement="SELECT n FROM orders WHERE id = ? AND at = ?",
        Parameters=[{"S": "a"}, {"N": "1"}],
    ),
    "statements: batch": call(
        "batch_execute_statement",
        Statements=[{"Statement": "SELECT * FROM none WHERE id = ?", "Parameters": [{"S": "a"}]}],
    ),
    "table: described": call("describe_table", **ON),
    "table: exists already": call(
        "create_table",
        TableName="orders",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    ),
    "table: without throughput": call(
        "create_table",
        TableName="more",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    ),
    "table: many members are wrong": call(
        "create_table", TableName="more", KeySchema=[{"KeyType": 1}], AttributeDefinitions=[None]
    ),
    "table: deleted": [call("delete_table", **ON), call("describe_table", **ON)],
    "table: throughput": call(
        "update_table",
        BillingMode="PROVISIONED",
        ProvisionedThroughput={"ReadCapacityUnits": 2, "WriteCapacityUnits": 3},
        **ON,
    ),
    "table: stream": call(
        "update_table",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
        **ON,
    ),
    "table: time to live": [
        call("update_time_to_live", TimeToLiveSpecification=TIME["enabled"], **ON),
        call("describe_time_to_live", **ON),
    ],
    "table: backups": call("describe_continuous_backups", **ON),
    "table: names by pages": pages("list_tables", PaginationConfig={"PageSize": 1}),
    "table: tags of a wrong ARN": call("list_tags_of_resource", ResourceArn="arn:aws:x"),
    "waiter: exists": wait("table_exists", **ON),
    "waiter: does not come": wait("table_exists", TableName="none"),
    "waiter: is not gone": wait("table_not_exists", **ON),
    "waiter: gone": wait("table_not_exists", TableName="none"),
    "resource: all types": use(reading),
    "resource: floats are refused": use(putting(n=1.5)),
    "resource: a time is refused": use(putting(n=datetime.datetime(2020, 1, 1))),
    "resource: mixed set": use(putting(n={1, "x"})),
    "resource: conditions": use(conditions),
    "resource: batch writer": use(writing),
    "resource: attributes": use(
        lambda trial, _: [table(trial).item_count, table(trial).key_schema]
    ),
    "resource: collection": use(
        lambda trial, _: [
            t.name
            for t in trial.boto3.resource("dynamodb", region_name="us-east-1").tables.limit(1)
        ]
    ),
    "region: another": Row(call("describe_table", **ON), region="eu-central-1"),
    "config: adaptive retries": Row(
        call("list_tables"), config={"retries": {"mode": "adaptive", "max_attempts": 2}}
    ),
    "config: unchecked parameters": Row(
        call("get_item", TableName="o", Key=KEY), config={"parameter_validation": False}
    ),
    "config: endpoint discovery": Row(
        call("list_tables"),
        config={"endpoint_discovery_enabled": True},
        sent_only="stock boto3 sends to the host that moto names, which is AWS's",
    ),
}
