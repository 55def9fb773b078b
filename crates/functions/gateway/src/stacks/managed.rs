//! Managed policies of AWS that deployment tools attach to roles, as documents (AWS managed policy
//! reference). Others have to be written out in a template.

use serde_json::{Value, json};

/// The start of ARNs of AWS's policies.
const OF_AWS: &str = "arn:aws:iam::aws:policy/";

/// The names that are known, for messages.
pub const KNOWN: [&str; 6] = [
    "AmazonS3FullAccess",
    "AmazonS3ReadOnlyAccess",
    "service-role/AWSLambdaBasicExecutionRole",
    "service-role/AWSLambdaSQSQueueExecutionRole",
    "AWSXRayDaemonWriteAccess",
    "AWSXrayWriteOnlyAccess",
];

const LOGS: [&str; 3] = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"];
const TRACES: [&str; 5] = [
    "xray:PutTraceSegments",
    "xray:PutTelemetryRecords",
    "xray:GetSamplingRules",
    "xray:GetSamplingTargets",
    "xray:GetSamplingStatisticSummaries",
];

/// Returns true for the ARN of a policy of AWS.
pub fn is_of_aws(arn: &str) -> bool {
    arn.starts_with(OF_AWS)
}

/// The document of a policy of AWS; `None` if it is not known.
pub fn document(arn: &str) -> Option<Value> {
    let actions: Vec<&str> = match arn.strip_prefix(OF_AWS)? {
        "AmazonS3FullAccess" => vec!["s3:*", "s3-object-lambda:*"],
        "AmazonS3ReadOnlyAccess" => vec![
            "s3:Get*",
            "s3:List*",
            "s3:Describe*",
            "s3-object-lambda:Get*",
            "s3-object-lambda:List*",
        ],
        "service-role/AWSLambdaBasicExecutionRole" => LOGS.to_vec(),
        "service-role/AWSLambdaSQSQueueExecutionRole" => {
            let queue = ["sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"];
            queue.into_iter().chain(LOGS).collect()
        }
        "AWSXRayDaemonWriteAccess" | "AWSXrayWriteOnlyAccess" => TRACES.to_vec(),
        _ => return None,
    };
    Some(json!({
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_policies_can_be_evaluated() {
        for name in KNOWN {
            let document = document(&format!("{OF_AWS}{name}")).unwrap();
            unlade_s3::Policy::from_value(&document).unwrap();
        }
        assert_eq!(document("arn:aws:iam::aws:policy/AdministratorAccess"), None);
        assert!(is_of_aws("arn:aws:iam::aws:policy/X") && !is_of_aws("arn:aws:iam::1:policy/X"));
    }
}
