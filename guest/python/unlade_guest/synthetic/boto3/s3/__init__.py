"""boto3.s3."""
