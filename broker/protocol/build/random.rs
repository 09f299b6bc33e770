//! Code for tests: random values of every message that are valid in a given version, the list of all messages, and which
//! arrays a version has.
//!
//! The including test provides `Gen` with a method for each kind of value, `null`, `untagged` and `left_out` for the
//! chances of those, and `count` for the length of arrays.

use crate::emit::{line, snake};
use crate::expressions::default;
use crate::model::{Api, Base, Field, Message, Struct};

pub fn emit(out: &mut String, apis: &[Api]) {
    for api in apis {
        for message in [&api.request, &api.response] {
            for holder in &message.structs {
                structure(out, api, message, holder);
            }
            arrays(out, message);
        }
    }
    line!(out, "/// Calls `$call!(api, message, random, arrays)` for every request and response.");
    line!(out, "macro_rules! for_each_message {{ ($call:ident) => {{");
    for api in apis {
        for message in [&api.request, &api.response] {
            let name = &message.name;
            line!(out, "$call!({}, {name}, random_{}, arrays_{});", api.name, function(name), snake(name));
        }
    }
    line!(out, "}} }}");
}

fn function(name: &str) -> String {
    snake(name)
}

fn structure(out: &mut String, api: &Api, message: &Message, holder: &Struct) {
    let module = snake(&api.name);
    let path = format!("kaas_protocol::messages::{module}::{}", holder.name);
    let name = scoped(message, &holder.name, &module);
    line!(
        out,
        "#[allow(unused_variables)]\npub fn random_{name}(g: &mut Gen, v: i16) -> {path} {{ {path} {{"
    );
    for field in &holder.fields {
        let mut value = value(message, field, &module);
        if let Some(null) = field.null {
            let nullable = null.condition(field.versions).unwrap_or_else(|| "true".to_owned());
            value = format!("if ({nullable}) && g.null() {{ None }} else {{ Some({value}) }}");
        }
        let absent = absent(field, &module);
        if field.tag.is_some() {
            value = format!("if g.untagged() {{ {absent} }} else {{ {value} }}");
        }
        value = format!("if g.left_out() {{ {absent} }} else {{ {value} }}");
        if let Some(condition) = field.versions.condition(holder.versions) {
            value = format!("if {condition} {{ {value} }} else {{ {absent} }}");
        }
        line!(out, "{}: {value},", field.ident());
    }
    line!(out, "}} }}");
}

/// Names of structures repeat between APIs, those of messages do not.
fn scoped(message: &Message, name: &str, module: &str) -> String {
    if name == message.name { function(name) } else { format!("{module}_in_{}", snake(name)) }
}

fn absent(field: &Field, module: &str) -> String {
    match &field.base {
        Base::Struct(name) if !field.array && field.null.is_none() => {
            format!("kaas_protocol::messages::{module}::{name}::default()")
        }
        _ => default(field),
    }
}

fn value(message: &Message, field: &Field, module: &str) -> String {
    let one = match &field.base {
        Base::Struct(name) => format!("random_{}(g, v)", scoped(message, name, module)),
        base => format!("g.{}()", base.method()),
    };
    if field.array { format!("{{ let n = g.count(); (0..n).map(|_| {one}).collect() }}") } else { one }
}

/// A list of arrays as they are named in errors, with the versions that have them.
fn arrays(out: &mut String, message: &Message) {
    line!(
        out,
        "pub fn arrays_{}(v: i16) -> Vec<&'static str> {{ let mut out = Vec::new();",
        snake(&message.name)
    );
    for holder in &message.structs {
        for field in holder.fields.iter().filter(|field| field.array) {
            let condition = field.versions.condition(message.versions).unwrap_or_else(|| "true".to_owned());
            line!(out, "if {condition} {{ out.push(\"{}.{}\"); }}", holder.name, field.name);
        }
    }
    line!(out, "let _ = v; out }}");
}
