//! Reading a config's text as its type, checking it, and writing it back as Kafka writes it.

use std::fmt;

use super::definition::{ConfigType, Definition, Valid};
use super::error::ConfigError;
use super::unsupported;

/// A value of a config's type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Boolean(bool),
    /// INT, SHORT and LONG, within the range of the type.
    Number(i64),
    Double(f64),
    /// STRING, CLASS and PASSWORD, without surrounding white space.
    Text(String),
    List(Vec<String>),
}

impl Value {
    /// Reads and checks `text` as a value of `definition`, by Kafka's rules: white space around it does not
    /// count, `true` and `false` in any case, lists separated by commas.
    pub fn parse(definition: &Definition, text: &str) -> Result<Self, ConfigError> {
        let value = Self::read(definition, text)?;
        value.check(definition, text)?;
        unsupported::check(definition.name, &value, text)?;
        Ok(value)
    }

    fn read(definition: &Definition, text: &str) -> Result<Self, ConfigError> {
        let trimmed = text.trim();
        let not_a_number = || ConfigError::NotANumber {
            name: definition.name.to_owned(),
            value: text.to_owned(),
            kind: definition.kind,
        };
        match definition.kind {
            ConfigType::Boolean if trimmed.eq_ignore_ascii_case("true") => Ok(Self::Boolean(true)),
            ConfigType::Boolean if trimmed.eq_ignore_ascii_case("false") => Ok(Self::Boolean(false)),
            ConfigType::Boolean => {
                Err(ConfigError::NotABoolean { name: definition.name.to_owned(), value: text.to_owned() })
            }
            ConfigType::Short => {
                trimmed.parse::<i16>().map(|n| Self::Number(n.into())).map_err(|_| not_a_number())
            }
            ConfigType::Int => {
                trimmed.parse::<i32>().map(|n| Self::Number(n.into())).map_err(|_| not_a_number())
            }
            ConfigType::Long => trimmed.parse::<i64>().map(Self::Number).map_err(|_| not_a_number()),
            ConfigType::Double => match trimmed.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(Self::Double(number)),
                _ => Err(not_a_number()),
            },
            ConfigType::List if trimmed.is_empty() => Ok(Self::List(Vec::new())),
            ConfigType::List => {
                Ok(Self::List(trimmed.split(',').map(|part| part.trim().to_owned()).collect()))
            }
            ConfigType::String | ConfigType::Class | ConfigType::Password => {
                Ok(Self::Text(trimmed.to_owned()))
            }
        }
    }

    fn check(&self, definition: &Definition, text: &str) -> Result<(), ConfigError> {
        let refuse = |rule: String| {
            Err(ConfigError::OutOfRange { name: definition.name.to_owned(), value: text.to_owned(), rule })
        };
        match (definition.valid, self) {
            (Valid::AtLeast(min), Self::Number(number)) if *number < min => {
                refuse(format!("Value must be at least {min}"))
            }
            (Valid::Between(min, _), Self::Number(number)) if *number < min => {
                refuse(format!("Value must be at least {min}"))
            }
            (Valid::Between(_, max), Self::Number(number)) if *number > max => {
                refuse(format!("Value must be no more than {max}"))
            }
            (Valid::BetweenOr(min, max, other), Self::Number(number))
                if (*number < min || *number > max) && *number != other =>
            {
                refuse(format!("Value must be between {min} and {max} or equal to {other}"))
            }
            (Valid::UnlimitedOrAtLeastOne, Self::Number(number)) if *number < -1 || *number == 0 => {
                refuse("Value must be unlimited (-1) or at least 1".to_owned())
            }
            (Valid::Ratio, Self::Double(number)) if *number < 0.0 => {
                refuse("Value must be at least 0".to_owned())
            }
            (Valid::Ratio, Self::Double(number)) if *number > 1.0 => {
                refuse("Value must be no more than 1".to_owned())
            }
            (Valid::Share | Valid::Positive, Self::Double(number)) if *number <= 0.0 => {
                refuse("Value must be above 0".to_owned())
            }
            (Valid::Share, Self::Double(number)) if *number > 1.0 => {
                refuse("Value must be no more than 1".to_owned())
            }
            (Valid::OneOf(allowed), Self::Text(value)) if !allowed.contains(&value.as_str()) => {
                refuse(format!("String must be one of: {}", allowed.join(", ")))
            }
            (Valid::ListOf(allowed), Self::List(values))
                if values.iter().any(|value| !allowed.contains(&value.as_str())) =>
            {
                refuse(format!("String must be one of: {}", allowed.join(", ")))
            }
            (Valid::ThrottledReplicas, Self::List(values)) if !are_throttled_replicas(values) => {
                refuse(format!(
                    "{} must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
                    definition.name
                ))
            }
            (Valid::KafkaVersion, Self::Text(value)) if kafka_version(value).is_none() => {
                refuse(format!("Version {value} is not a valid version"))
            }
            _ => Ok(()),
        }
    }

    /// The number, 0 for any other type.
    pub fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            _ => 0,
        }
    }

    /// The list's elements; none for any other type.
    pub fn list(&self) -> &[String] {
        match self {
            Self::List(values) => values,
            _ => &[],
        }
    }
}

/// As Kafka shows a parsed value: lists with bare commas, doubles with a decimal point.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Boolean(value) => value.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Double(number) => write!(f, "{number:?}"),
            Self::Text(text) => f.write_str(text),
            Self::List(values) => f.write_str(&values.join(",")),
        }
    }
}

fn are_throttled_replicas(values: &[String]) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    values.concat() == "*"
        || values.iter().all(|value| {
            value.is_empty()
                || value
                    .split_once(':')
                    .is_some_and(|(partition, broker)| number(partition) && number(broker))
        })
}

/// Major and minor of a Kafka version, with or without an `-IVn` behind it.
pub(super) fn kafka_version(text: &str) -> Option<(u32, u32)> {
    let (numbers, internal) = match text.split_once("-IV") {
        Some((numbers, internal)) => (numbers, Some(internal)),
        None => (text, None),
    };
    if internal.is_some_and(|internal| internal.parse::<u32>().is_err()) {
        return None;
    }
    let parts: Vec<u32> = numbers.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts.as_slice() {
        [major, minor] | [major, minor, _] | [major, minor, _, _] => Some((*major, *minor)),
        _ => None,
    }
}
