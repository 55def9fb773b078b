# A function with what the provider has for one: the address of the gateway, and no call of other services.
terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}

variable "gateway" {}
variable "word" {}

provider "aws" {
  region                      = "us-east-1"
  skip_credentials_validation = true
  skip_requesting_account_id  = true
  skip_metadata_api_check     = true
  endpoints {
    lambda = var.gateway
  }
}

resource "aws_lambda_function" "app" {
  function_name                  = "app"
  description                    = "says a word"
  role                           = "arn:aws:iam::000000000000:role/default"
  runtime                        = "python3.11"
  handler                        = "app.handler"
  filename                       = "app.zip"
  source_code_hash               = filebase64sha256("app.zip")
  publish                        = true
  timeout                        = 10
  memory_size                    = 256
  reserved_concurrent_executions = 5
  environment {
    variables = { WORD = var.word }
  }
  tags = { stage = "test" }
}

resource "aws_lambda_alias" "live" {
  name             = "live"
  function_name    = aws_lambda_function.app.function_name
  function_version = aws_lambda_function.app.version
}

resource "aws_lambda_permission" "topic" {
  statement_id  = "topic"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.app.function_name
  qualifier     = aws_lambda_alias.live.name
  principal     = "sns.amazonaws.com"
  source_arn    = "arn:aws:sns:us-east-1:000000000000:alerts"
}

resource "aws_lambda_function_event_invoke_config" "app" {
  function_name                = aws_lambda_function.app.function_name
  maximum_event_age_in_seconds = 120
  maximum_retry_attempts       = 1
}

resource "aws_lambda_provisioned_concurrency_config" "live" {
  function_name                     = aws_lambda_function.app.function_name
  qualifier                         = aws_lambda_alias.live.name
  provisioned_concurrent_executions = 1
}

data "aws_lambda_invocation" "live" {
  function_name = aws_lambda_function.app.function_name
  qualifier     = aws_lambda_alias.live.name
  input         = jsonencode({})
}

output "said" {
  value = data.aws_lambda_invocation.live.result
}
