//! Versions and keys that are not served, and bytes that are no request.

use kaas_protocol::{ApiVersionsRequest, MetadataRequest};

use super::super::side::{Side, api_keys};

/// What ApiVersions says in each version, for the keys that both serve.
pub fn versions(side: &mut Side) {
    let served: Vec<i16> = side.served_keys();
    for version in side.versions::<ApiVersionsRequest>() {
        for (name, software) in
            [("with a name", "kaas-differ"), ("without a name", ""), ("with a bad name", "a b/c")]
        {
            side.note(name);
            let request = ApiVersionsRequest {
                client_software_name: software.into(),
                client_software_version: "1.0".into(),
            };
            if let Some(mut response) = side.ask(version, &request) {
                response.api_keys.retain(|api| served.contains(&api.api_key));
                response.api_keys.sort_by_key(|api| api.api_key);
                side.write_down(format!("ApiVersions v{version} {name}"), &response);
            } else {
                side.write_down(format!("ApiVersions v{version} {name}"), &"closed");
            }
        }
    }
}

fn header(key: i16, version: i16, flexible: bool) -> Vec<u8> {
    let mut bytes = key.to_be_bytes().to_vec();
    bytes.extend(version.to_be_bytes());
    bytes.extend([0, 0, 0, 1, 0, 1, b'x']);
    if flexible {
        bytes.push(0);
    }
    bytes
}

/// Every key in the versions around those that are served.
pub fn unserved(side: &mut Side) {
    for api in api_keys() {
        let Some(range) = side.served_range(*api) else { continue };
        let mut versions = vec![range.min - 1, -1, i16::MAX, i16::MIN];
        if range.max == api.versions().max {
            versions.push(range.max + 100);
        }
        for version in versions.into_iter().filter(|version| !range.contains(*version)) {
            let flexible = api.request_header_version(range.max) == 2 && version > range.max;
            let mut bytes = header(api.code(), version, flexible);
            bytes.extend([0; 64]);
            side.raw(&format!("{} v{version}, which is not served", api.name()), &bytes);
        }
    }
    for key in [-1, 4, 5, 6, 7, 38, 39, 40, 41, 52, 100, 1000, i16::MAX, i16::MIN] {
        if !(0..=99).contains(&key) {
            side.raw(&format!("key {key}"), &header(key, 0, false));
        }
    }
}

/// Frames that are no requests.
pub fn garbage(side: &mut Side) {
    side.raw("an empty frame", &[]);
    for length in 1..10 {
        side.raw(&format!("{length} zero bytes"), &vec![0; length]);
    }
    side.raw_stream("a negative length", &(-1_i32).to_be_bytes());
    side.raw_stream("a length of 2 GiB", &i32::MAX.to_be_bytes());
    side.raw_stream("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    side.raw("client id longer than the frame", &[0, 3, 0, 1, 0, 0, 0, 1, 0, 9, b'x']);
    side.raw("null client id", &[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0]);
    side.raw("negative client id length", &[0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xfe, 0, 0, 0, 0]);
    side.raw("client id that is not UTF-8", &[0, 3, 0, 1, 0, 0, 0, 1, 0, 1, 0xff, 0, 0, 0, 0]);
    for version in side.versions::<MetadataRequest>() {
        let flexible = version >= 9;
        let mut bytes = header(3, version, flexible);
        side.raw(&format!("Metadata v{version} without a body"), &bytes);
        bytes.extend([0x7f, 0xff, 0xff, 0xff, 0x0f]);
        side.raw(&format!("Metadata v{version} with a hostile count"), &bytes);
        let mut bytes = header(3, version, flexible);
        bytes.extend(if flexible { vec![1, 0, 0, 0, 0, 9, 9] } else { vec![0, 0, 0, 0, 0, 0, 0, 9, 9] });
        side.raw(&format!("Metadata v{version} with bytes behind it"), &bytes);
        if flexible {
            let mut bytes = header(3, version, true);
            bytes.extend([1, 0, 0]);
            if version <= 10 {
                bytes.push(0);
            }
            bytes.extend([1, 99, 2, 7, 7]);
            side.raw(&format!("Metadata v{version} with an unknown tag"), &bytes);
        }
    }
    // A tag in the header that repeats.
    let mut bytes = header(3, 12, false);
    bytes.extend([2, 1, 1, 0, 1, 1, 0, 1, 0, 0, 0]);
    side.raw("a header whose tag repeats", &bytes);
}
