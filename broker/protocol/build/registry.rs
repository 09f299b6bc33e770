//! What spans all APIs: the prelude of the generated modules, `ApiKey`, `RequestKind` and `ResponseKind`.

use crate::emit::{line, snake};
use crate::model::Api;

pub fn emit(out: &mut String, apis: &[Api]) {
    line!(out, "/// What generated modules need.");
    line!(out, "mod generated {{");
    line!(out, "pub(super) use bytes::Bytes;");
    line!(out, "pub(super) use super::ApiKey;");
    line!(out, "pub(super) use crate::error::{{DecodeError, DecodeErrorKind, EncodeError}};");
    line!(out, "pub(super) use crate::error_code::ErrorCode;");
    line!(out, "pub(super) use crate::kstring::KString;");
    line!(out, "pub(super) use crate::message::{{Message, Request, Response, VersionRange}};");
    line!(out, "pub(super) use crate::reader::Reader;");
    line!(out, "pub(super) use crate::records::Records;");
    line!(out, "pub(super) use crate::uuid::Uuid;");
    line!(out, "pub(super) use crate::writer::Writer;");
    line!(out, "}}");
    line!(out, "#[allow(unused_imports)]\nuse generated::*;\nuse crate::segments::Segments;");
    line!(out, "/// All requests and responses under one roof.");
    line!(out, "pub(crate) mod roots {{");
    for api in apis {
        line!(out, "pub use super::{}::{{{}, {}}};", snake(&api.name), api.request.name, api.response.name);
    }
    line!(out, "}}\nuse roots::*;");
    keys(out, apis);
    kinds(out, apis, "Request");
    kinds(out, apis, "Response");
}

fn keys(out: &mut String, apis: &[Api]) {
    line!(out, "/// An API that has a schema. The names are Kafka's.");
    line!(out, "#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]");
    line!(out, "#[repr(i16)]\npub enum ApiKey {{");
    for api in apis {
        line!(out, "/// {}\n{} = {},", api.about, api.name, api.key);
    }
    line!(out, "}}\nimpl ApiKey {{");
    line!(out, "/// Every API, by ascending number.\npub const ALL: &'static [ApiKey] = &[");
    for api in apis {
        line!(out, "ApiKey::{},", api.name);
    }
    line!(out, "];");
    line!(
        out,
        "/// The API of a number.\npub const fn from_code(code: i16) -> Option<ApiKey> {{ Some(match code {{"
    );
    for api in apis {
        line!(out, "{} => ApiKey::{},", api.key, api.name);
    }
    line!(out, "_ => return None, }}) }}");
    line!(out, "/// The number on the wire.\npub const fn code(self) -> i16 {{ match self {{");
    for api in apis {
        line!(out, "ApiKey::{} => {},", api.name, api.key);
    }
    line!(out, "}} }}");
    line!(
        out,
        "/// Kafka's name, without `Request`.\npub const fn name(self) -> &'static str {{ match self {{"
    );
    for api in apis {
        line!(out, "ApiKey::{0} => \"{0}\",", api.name);
    }
    line!(out, "}} }}");
    line!(out, "/// The versions of the schema; what a broker advertises is its own decision.");
    line!(out, "pub const fn versions(self) -> VersionRange {{ let (min, max) = match self {{");
    for api in apis {
        line!(out, "ApiKey::{} => ({}, {}),", api.name, api.request.versions.min, api.request.versions.max);
    }
    line!(out, "}}; VersionRange {{ min, max }} }}");
    line!(out, "/// First version with compact lengths and tagged fields; `i16::MAX` if there is none.");
    line!(out, "pub const fn flexible_from(self) -> i16 {{ match self {{");
    for api in apis {
        let from = api.request.flexible.map_or("i16::MAX".to_owned(), |from| from.to_string());
        line!(out, "ApiKey::{} => {from},", api.name);
    }
    line!(out, "}} }}");
    line!(out, "/// Version of the request header that goes with a version of the request.");
    line!(out, "pub const fn request_header_version(self, version: i16) -> i16 {{");
    line!(out, "if version >= self.flexible_from() {{ 2 }} else {{ 1 }} }}");
    line!(
        out,
        "/// Version of the response header that goes with a version of the response. Always 0 for ApiVersions,"
    );
    line!(out, "/// whose answer must be readable before the client knows the broker.");
    line!(out, "pub const fn response_header_version(self, version: i16) -> i16 {{ match self {{");
    line!(out, "ApiKey::ApiVersions => 0,");
    line!(out, "_ if version >= self.flexible_from() => 1,\n_ => 0, }} }}");
    line!(out, "}}");
    line!(out, "impl std::fmt::Display for ApiKey {{");
    line!(
        out,
        "fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{ f.write_str(self.name()) }}\n}}"
    );
}

fn kinds(out: &mut String, apis: &[Api], kind: &str) {
    line!(
        out,
        "/// Any {}.\n#[derive(Debug, Clone, PartialEq)]\npub enum {kind}Kind {{",
        kind.to_lowercase()
    );
    for api in apis {
        line!(out, "/// {0}\n{0}({0}{kind}),", api.name);
    }
    line!(out, "}}\nimpl {kind}Kind {{");
    line!(out, "/// Decodes a body; see [`Message::decode`].");
    line!(
        out,
        "pub fn decode(api: ApiKey, version: i16, body: Bytes) -> Result<Self, DecodeError> {{ Ok(match api {{"
    );
    for api in apis {
        line!(out, "ApiKey::{0} => {kind}Kind::{0}({0}{kind}::decode(version, body)?),", api.name);
    }
    line!(out, "}}) }}");
    line!(out, "/// Appends the body to `out`; see [`Message::encode`].");
    line!(
        out,
        "pub fn encode(&self, version: i16, out: &mut Segments) -> Result<(), EncodeError> {{ match self {{"
    );
    for api in apis {
        line!(out, "{kind}Kind::{}(message) => message.encode(version, out),", api.name);
    }
    line!(out, "}} }}");
    line!(out, "/// The API.\npub const fn api(&self) -> ApiKey {{ match self {{");
    for api in apis {
        line!(out, "{kind}Kind::{0}(_) => ApiKey::{0},", api.name);
    }
    line!(out, "}} }}\n}}");
    for api in apis {
        line!(out, "impl From<{0}{kind}> for {kind}Kind {{", api.name);
        line!(out, "fn from(message: {0}{kind}) -> Self {{ {kind}Kind::{0}(message) }}\n}}", api.name);
    }
}
