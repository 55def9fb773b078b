import os


def handler(event, context):
    return {"word": os.environ["WORD"], "version": context.function_version}
