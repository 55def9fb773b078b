SERVICE="sts"
from .rows import call
def setup(client): return {}
STAND_INS={}
ROWS={"identity": call("get_caller_identity"), "unknown": call("get_caller_identity", A=1)}
