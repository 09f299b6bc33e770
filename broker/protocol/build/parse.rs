//! From the text of a table to the model, with checks that keep the generator simple.

use crate::model::{Api, Base, Field, Message, Range, Struct};

/// A table line with something on it.
struct Line<'a> {
    number: usize,
    depth: usize,
    words: Vec<&'a str>,
}

type Result<T> = std::result::Result<T, String>;

pub fn api(text: &str) -> Result<Api> {
    let mut about = String::new();
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words.first() {
            None => {}
            Some(&"#") if lines.is_empty() => {
                about.push_str(line.trim_start_matches('#').trim());
                about.push(' ');
            }
            Some(&"#") => {}
            Some(_) => {
                let depth = line.len() - line.trim_start().len();
                lines.push(Line { number: index + 1, depth, words });
            }
        }
    }
    let mut lines = lines.into_iter().peekable();
    let head = lines.next().ok_or("empty table")?;
    let [word, key, name] = head.words[..] else { return Err(at(&head, "expected: api KEY NAME")) };
    if word != "api" {
        return Err(at(&head, "expected: api KEY NAME"));
    }
    let key = key.parse().map_err(|_| at(&head, "bad key"))?;
    let mut messages = Vec::new();
    while let Some(head) = lines.next() {
        let mut body = Vec::new();
        while let Some(line) = lines.next_if(|line| line.depth > head.depth) {
            body.push(line);
        }
        messages.push(message(name, &head, body)?);
    }
    let mut messages = messages.into_iter();
    let (Some(request), Some(response), None) = (messages.next(), messages.next(), messages.next()) else {
        return Err("expected one request and one response".to_owned());
    };
    if request.versions != response.versions || request.flexible != response.flexible {
        return Err("request and response differ in versions".to_owned());
    }
    if let Some(name) = request.structs.iter().map(|s| &s.name).find(|name| response.find(name).is_some()) {
        return Err(format!("{name} is in the request and in the response"));
    }
    Ok(Api { key, name: name.to_owned(), about: about.trim().to_owned(), request, response })
}

fn at(line: &Line<'_>, text: &str) -> String {
    format!("line {}: {text}", line.number)
}

/// `3-7`, `3+`, `3`.
fn range(text: &str, top: i16) -> Option<Range> {
    if let Some(min) = text.strip_suffix('+') {
        return Some(Range { min: min.parse().ok()?, max: top });
    }
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let range = Range { min: min.parse().ok()?, max: max.parse().ok()? };
    (range.min <= range.max).then_some(range)
}

fn message(api: &str, head: &Line<'_>, body: Vec<Line<'_>>) -> Result<Message> {
    let (kind, versions, flexible) = match head.words[..] {
        ["request", versions] => ("Request", versions, None),
        ["response", versions] => ("Response", versions, None),
        ["request", versions, "flexible", from] => ("Request", versions, Some(from)),
        ["response", versions, "flexible", from] => ("Response", versions, Some(from)),
        _ => return Err(at(head, "expected: request|response MIN-MAX [flexible N+]")),
    };
    let versions = range(versions, i16::MAX).ok_or_else(|| at(head, "bad versions"))?;
    let flexible = match flexible {
        Some(text) => Some(range(text, versions.max).ok_or_else(|| at(head, "bad flexible version"))?.min),
        None => None,
    };
    let root = Struct { name: format!("{api}{kind}"), versions, fields: Vec::new() };
    let mut message = Message { name: root.name.clone(), versions, flexible, structs: vec![root] };
    let mut open: Vec<(usize, usize)> = vec![(head.depth, 0)];
    for line in &body {
        while open.last().is_some_and(|(depth, _)| *depth >= line.depth) {
            open.pop();
        }
        let parent = open.last().map(|(_, index)| *index).ok_or_else(|| at(line, "no structure to be in"))?;
        let inner = match line.words[..] {
            ["struct", name] => Some(Struct { name: name.to_owned(), versions, fields: Vec::new() }),
            _ => add_field(&mut message, parent, line)?,
        };
        if let Some(inner) = inner {
            open.push((line.depth, message.structs.len()));
            message.structs.push(inner);
        }
    }
    // A field's own structure is opened at its line and stays empty if it is declared elsewhere.
    message.structs.retain(|candidate| !candidate.fields.is_empty() || candidate.name == message.name);
    check(&message)?;
    Ok(message)
}

/// Adds a field and returns the structure that its children would fill.
fn add_field(message: &mut Message, parent: usize, line: &Line<'_>) -> Result<Option<Struct>> {
    let holder = message.structs.get_mut(parent).ok_or_else(|| at(line, "no structure to be in"))?;
    let top = holder.versions.max;
    let [name, ty, rest @ ..] = &line.words[..] else { return Err(at(line, "expected: field type")) };
    let (array, base) = match ty.strip_prefix("[]") {
        Some(base) => (true, base),
        None => (false, *ty),
    };
    let mut field = Field {
        name: (*name).to_owned(),
        base: Base::parse(base),
        array,
        versions: holder.versions,
        null: None,
        tag: None,
        default: None,
        ignorable: false,
    };
    let mut null = None;
    for word in rest {
        match word.split_once('=') {
            Some(("null", versions)) => null = Some(versions.to_owned()),
            Some(("tag", tag)) => field.tag = Some(tag.parse().map_err(|_| at(line, "bad tag"))?),
            Some(("default", value)) => field.default = Some(value.to_owned()),
            Some(_) => return Err(at(line, "unknown option")),
            None if *word == "null" => null = Some(String::new()),
            None if *word == "ignorable" => field.ignorable = true,
            None => {
                field.versions = range(word, top).ok_or_else(|| at(line, "bad versions or unknown option"))?
            }
        }
    }
    field.null = match null.as_deref() {
        None => None,
        Some("") => Some(field.versions),
        Some(text) => Some(range(text, field.versions.max).ok_or_else(|| at(line, "bad null versions"))?),
    };
    if !holder.versions.covers(field.versions) {
        return Err(at(line, "the field has versions that its structure has not"));
    }
    if field.null.is_some_and(|null| !field.versions.covers(null)) {
        return Err(at(line, "null in versions that the field has not"));
    }
    if field.tag.is_some() && message.flexible.is_none_or(|from| field.versions.min < from) {
        return Err(at(line, "a tag before the first flexible version"));
    }
    if matches!(field.base, Base::Records | Base::RecordParts) && (field.array || field.null.is_none()) {
        return Err(at(line, "records must be nullable and no array"));
    }
    if field.null.is_some() && field.base.is_fixed() && !field.array {
        return Err(at(line, "this type cannot be null"));
    }
    let inner = match &field.base {
        Base::Struct(name) => {
            Some(Struct { name: name.clone(), versions: field.versions, fields: Vec::new() })
        }
        _ => None,
    };
    holder.fields.push(field);
    Ok(inner)
}

/// Every structure that is named exists exactly once.
fn check(message: &Message) -> Result<()> {
    for (index, outer) in message.structs.iter().enumerate() {
        if message.structs.iter().skip(index + 1).any(|other| other.name == outer.name) {
            return Err(format!("structure {} is there twice in {}", outer.name, message.name));
        }
        for field in &outer.fields {
            if let Base::Struct(name) = &field.base
                && message.find(name).is_none()
            {
                return Err(format!("structure {name} of {} is not declared", field.name));
            }
        }
    }
    Ok(())
}
