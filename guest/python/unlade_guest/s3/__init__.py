"""The S3 client: what boto3 does before a request and after a response, without either."""
