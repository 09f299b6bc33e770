//! DescribeCluster: the brokers, the controller and the cluster id. KIP-700, 919, 1073.

use kaas_protocol::messages::describe_cluster::DescribeClusterBroker;
use kaas_protocol::{DescribeClusterRequest, DescribeClusterResponse, ErrorCode, KString};

use super::{Context, operations};

/// Endpoint type of brokers; the other one is KRaft controllers, which kaas has none of.
const BROKERS: i8 = 1;

/// Answers with this broker.
pub async fn handle(context: Context, request: DescribeClusterRequest) -> DescribeClusterResponse {
    let broker = &context.broker;
    if request.endpoint_type != BROKERS {
        let error_code = match request.endpoint_type {
            2 => ErrorCode::MISMATCHED_ENDPOINT_TYPE,
            _ => ErrorCode::UNSUPPORTED_ENDPOINT_TYPE,
        };
        let words =
            format!("The request asks for endpoint type {}, and this is a broker.", request.endpoint_type);
        return DescribeClusterResponse {
            error_code,
            error_message: Some(words.as_str().into()),
            ..DescribeClusterResponse::default()
        };
    }
    let (host, port) = broker.endpoint(&context.peer);
    let this = DescribeClusterBroker {
        broker_id: broker.node_id,
        host: host.as_str().into(),
        port,
        rack: broker.configs().effective.rack.as_deref().map(KString::from),
        ..DescribeClusterBroker::default()
    };
    let mut response = DescribeClusterResponse {
        cluster_id: broker.cluster_id().as_str().into(),
        controller_id: broker.node_id,
        brokers: vec![this],
        ..DescribeClusterResponse::default()
    };
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = operations::CLUSTER;
    }
    response
}
