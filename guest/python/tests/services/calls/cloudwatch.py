SERVICE="cloudwatch"
from .rows import call, File
def setup(client): return {}
STAND_INS={}
ROWS={"list": call("list_metrics"), "put": call("put_metric_data", Namespace="é x/ü",MetricData=[{"MetricName":"m","Value":1.5}]),
}
