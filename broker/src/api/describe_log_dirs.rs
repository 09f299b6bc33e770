//! DescribeLogDirs: how large partitions are, and how full the volume is. KIP-113, 827.

use std::collections::BTreeMap;
use std::sync::Arc;

use kaas_control::metadata::Topic;
use kaas_protocol::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kaas_protocol::{DescribeLogDirsRequest, DescribeLogDirsResponse, KString};

use super::{Context, topics};

/// Answers with the one directory there is. Partitions that do not exist are left out, as in Kafka.
pub async fn handle(context: Context, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    let broker = &context.broker;
    let substrate = Arc::clone(broker.engine.substrate());
    let mut result = DescribeLogDirsResult {
        log_dir: KString::from(broker.data_dir.as_str()),
        ..DescribeLogDirsResult::default()
    };
    match context.read_blocking(move || substrate.space()).await {
        Ok(Ok(space)) => {
            let known =
                |bytes: Option<u64>| bytes.map_or(-1, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
            result.total_bytes = known(space.total_bytes);
            result.usable_bytes = known(space.available_bytes);
        }
        Ok(Err(error)) => tracing::warn!(%error, "the volume does not say how full it is"),
        Err(failure) => {
            result.error_code = failure.code;
            return DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() };
        }
    }
    for (topic, partitions) in asked(&context, request) {
        for partition in &partitions {
            broker.partitions.prepare(&topic, *partition);
        }
        let mut sizes = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let partition_index = i32::try_from(partition).unwrap_or(i32::MAX);
            if let Ok(open) = context.open(&topic, partition_index).await {
                let partition_size = i64::try_from(open.size_bytes()).unwrap_or(i64::MAX);
                sizes.push(DescribeLogDirsPartition {
                    partition_index,
                    partition_size,
                    ..DescribeLogDirsPartition::default()
                });
            }
        }
        if sizes.is_empty() {
            continue;
        }
        result.topics.push(DescribeLogDirsTopic { name: (&*topic.name).into(), partitions: sizes });
    }
    DescribeLogDirsResponse { results: vec![result], ..DescribeLogDirsResponse::default() }
}

fn asked(context: &Context, request: DescribeLogDirsRequest) -> Vec<(Arc<Topic>, Vec<u32>)> {
    let known = context.broker.store.topics();
    let Some(topics) = request.topics else {
        return known.iter().map(|topic| (Arc::clone(topic), (0..topic.partitions).collect())).collect();
    };
    let mut asked: BTreeMap<KString, Vec<u32>> = BTreeMap::new();
    for topic in topics {
        let Some(found) = known.get(&topic.topic) else { continue };
        let partitions = topic.partitions.iter().filter_map(|index| topics::partition(found, *index).ok());
        asked.entry(topic.topic.clone()).or_default().extend(partitions);
    }
    let found = asked.into_iter().filter_map(|(name, mut partitions)| {
        partitions.sort_unstable();
        partitions.dedup();
        known.get(&name).map(|topic| (Arc::clone(topic), partitions))
    });
    found.collect()
}
