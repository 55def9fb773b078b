"""boto3.resources."""
