//! Changing configs: IncrementalAlterConfigs (KIP-339) and the older AlterConfigs.
//!
//! These make the new set of overrides; the caller validates it ([`super::TopicConfigs::validate`],
//! [`super::BrokerConfigs::with_overrides`]) before it is stored.

use super::ConfigMap;
use super::definition::Definition;
use super::error::ConfigError;
use super::topic::is_list;

/// What is done to one config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Set,
    Delete,
    Append,
    Subtract,
}

impl Operation {
    /// The operation with this code on the wire.
    pub fn from_code(code: i8) -> Result<Self, ConfigError> {
        match code {
            0 => Ok(Self::Set),
            1 => Ok(Self::Delete),
            2 => Ok(Self::Append),
            3 => Ok(Self::Subtract),
            _ => Err(ConfigError::UnknownOperation { code }),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Set => "SET",
            Self::Delete => "DELETE",
            Self::Append => "APPEND",
            Self::Subtract => "SUBTRACT",
        }
    }
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alteration<'a> {
    pub name: &'a str,
    pub operation: Operation,
    /// `None` is allowed for [`Operation::Delete`] only.
    pub value: Option<&'a str>,
}

/// Applies changes to the overrides of one resource. `definition` finds a config by its name.
///
/// APPEND and SUBTRACT work on the override if there is one, else on the default; appending what is there, and
/// taking away what is not, changes nothing. A config may be named once.
pub fn incremental(
    current: &ConfigMap,
    changes: &[Alteration<'_>],
    definition: impl Fn(&str) -> Option<&'static Definition>,
) -> Result<ConfigMap, ConfigError> {
    check_names(changes.iter().map(|change| change.name))?;
    let mut next = current.clone();
    for change in changes {
        let name = change.name.to_owned();
        if change.operation == Operation::Delete {
            next.remove(&name);
            continue;
        }
        let Some(value) = change.value else { return Err(ConfigError::NullValue { name }) };
        if change.operation == Operation::Set {
            next.insert(name, value.to_owned());
            continue;
        }
        let Some(definition) = definition(&name).filter(|definition| is_list(definition)) else {
            return Err(ConfigError::NotAList { name, operation: change.operation.name() });
        };
        let text = next.get(&name).map(String::as_str).or(definition.default).unwrap_or_default();
        let mut elements: Vec<&str> = text.split(',').map(str::trim).filter(|one| !one.is_empty()).collect();
        for element in value.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let position = elements.iter().position(|one| *one == element);
            match (change.operation, position) {
                (Operation::Append, None) => elements.push(element),
                (Operation::Subtract, Some(position)) => {
                    elements.remove(position);
                }
                _ => {}
            }
        }
        let joined = elements.join(",");
        next.insert(name, joined);
    }
    Ok(next)
}

/// The overrides that AlterConfigs asks for: exactly these, whatever there was.
pub fn replacement<'a>(
    configs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<ConfigMap, ConfigError> {
    let configs: Vec<_> = configs.into_iter().collect();
    check_names(configs.iter().map(|(name, _)| *name))?;
    configs
        .into_iter()
        .map(|(name, value)| match value {
            Some(value) => Ok((name.to_owned(), value.to_owned())),
            None => Err(ConfigError::NullValue { name: name.to_owned() }),
        })
        .collect()
}

fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), ConfigError> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ConfigError::Duplicate { name: name.to_owned() });
        }
    }
    Ok(())
}
