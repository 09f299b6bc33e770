//! From a frame to a started request: header, version check, dispatch.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kaas_protocol::{ApiKey, decode_request_header, peek};

use super::{Context, api_versions, produce, registry};
use crate::net::{Call, Peer, Reply, Service};
use crate::server::Broker;

/// The requests of a broker, as the network calls them.
pub struct Requests {
    broker: Arc<Broker>,
}

impl Requests {
    /// The requests of `broker`.
    pub fn new(broker: Arc<Broker>) -> Self {
        Self { broker }
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Requests")
    }
}

impl Service for Requests {
    fn may_stage(&self, frame: &Bytes) -> bool {
        frame.first_chunk::<2>().map(|key| i16::from_be_bytes(*key)) == Some(ApiKey::Produce.code())
    }

    fn foresee(&self, frame: &Bytes) {
        // A frame that turns out to be malformed is refused when its turn comes.
        let api = ApiKey::Produce;
        let Some(peeked) = peek(frame).filter(|peeked| peeked.api_key == api.code()) else { return };
        if !registry::find(api.code()).is_some_and(|known| known.versions.contains(peeked.api_version)) {
            return;
        }
        if let Ok((_, body)) = decode_request_header(api, peeked.api_version, frame) {
            produce::foresee(&self.broker, peeked.api_version, body);
        }
    }

    fn call(&self, peer: &Arc<Peer>, frame: Bytes) -> Call {
        let Some(peeked) = peek(&frame) else {
            return close("a request without a header".to_owned());
        };
        let version = peeked.api_version;
        let Some(api) = registry::find(peeked.api_key) else {
            return close(format!("unknown api key {} (version {version})", peeked.api_key));
        };
        if !api.versions.contains(version) {
            // A client that knows newer versions than we do learns ours (KIP-511); for any other request Kafka
            // closes the connection.
            if api.key == ApiKey::ApiVersions {
                return Call::Done(api_versions::unsupported(peeked.correlation_id));
            }
            return close(format!("version {version} of {} is not served ({})", api.key, api.versions));
        }
        match decode_request_header(api.key, version, &frame) {
            Ok((header, body)) => {
                let context = Context {
                    broker: Arc::clone(&self.broker),
                    peer: Arc::clone(peer),
                    version,
                    client_id: header.client_id,
                };
                (api.start)(context, header.correlation_id, body)
            }
            Err(error) => close(format!("malformed request header: {error}")),
        }
    }
}

fn close(reason: String) -> Call {
    Call::Done(Reply::Close(reason))
}
