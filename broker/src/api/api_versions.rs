//! ApiVersions: what this broker serves. Asked before anything else, so it must be answerable whatever the
//! client's version (KIP-511).

use kaas_protocol::messages::api_versions::ApiVersion;
use kaas_protocol::{ApiVersionsRequest, ApiVersionsResponse, ErrorCode};

use super::{Context, registry};
use crate::net::Reply;

/// Answers what is in the registry.
pub async fn handle(context: Context, request: ApiVersionsRequest) -> ApiVersionsResponse {
    let named = |text: &str| is_software_name(text);
    if context.version >= 3
        && !(named(&request.client_software_name) && named(&request.client_software_version))
    {
        return ApiVersionsResponse {
            error_code: ErrorCode::INVALID_REQUEST,
            ..ApiVersionsResponse::default()
        };
    }
    tracing::debug!(
        peer = %context.peer,
        software = %request.client_software_name.as_str(),
        version = %request.client_software_version.as_str(),
        "client"
    );
    ApiVersionsResponse { api_keys: api_keys(), ..ApiVersionsResponse::default() }
}

/// The answer to a version we do not know: our versions, in the body of version 0.
pub fn unsupported(correlation_id: i32) -> Reply {
    let response = ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION,
        api_keys: api_keys(),
        ..ApiVersionsResponse::default()
    };
    registry::reply(correlation_id, 0, &response)
}

fn api_keys() -> Vec<ApiVersion> {
    let mut keys: Vec<ApiVersion> = registry::APIS
        .iter()
        .map(|api| ApiVersion {
            api_key: api.key.code(),
            min_version: api.advertised_min,
            max_version: api.versions.max,
        })
        .collect();
    keys.sort_by_key(|api| api.api_key);
    keys
}

/// Kafka's rule for names of client software: letters and digits, with dots and dashes inside.
fn is_software_name(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_names() {
        for good in ["a", "librdkafka", "apache-kafka-java", "4.1.0", "1.0-rc1"] {
            assert!(is_software_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "a/b", "ä"] {
            assert!(!is_software_name(bad), "{bad}");
        }
    }

    #[test]
    fn each_key_is_advertised_once_within_its_schema() {
        let keys = api_keys();
        assert!(keys.windows(2).all(|pair| pair[0].api_key < pair[1].api_key));
        for api in registry::APIS {
            let schema = api.key.versions();
            assert!(schema.min <= api.versions.min && api.versions.max <= schema.max, "{}", api.key);
        }
    }
}
