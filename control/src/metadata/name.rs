//! The rules for topic names: Kafka's.

/// Longest topic name in bytes (all legal characters are ASCII).
pub const MAX_NAME_BYTES: usize = 249;

/// Topics that Kafka reserves for itself. kaas keeps that state in journals instead, but clients filter these
/// names, so a topic of such a name is reported as internal here too.
const INTERNAL: [&str; 3] = ["__consumer_offsets", "__transaction_state", "__share_group_state"];

/// Why a topic name is refused; the wording clients know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("Topic name is invalid: the empty string is not allowed")]
    Empty,
    #[error("Topic name is invalid: '{name}' is not allowed")]
    Dots { name: String },
    #[error(
        "Topic name is invalid: the length of '{name}' is longer than the max allowed length {MAX_NAME_BYTES}"
    )]
    TooLong { name: String },
    #[error(
        "Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    )]
    Characters { name: String },
}

/// Checks a topic name: 1 to 249 of `[a-zA-Z0-9._-]`, and neither `.` nor `..`.
pub fn validate_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name == "." || name == ".." {
        return Err(NameError::Dots { name: name.to_owned() });
    }
    // Kafka counts UTF-16 units; a name outside ASCII fails either way.
    if name.chars().count() > MAX_NAME_BYTES {
        return Err(NameError::TooLong { name: name.to_owned() });
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) {
        return Err(NameError::Characters { name: name.to_owned() });
    }
    Ok(())
}

/// Whether Kafka calls a topic of this name internal.
pub fn is_internal(name: &str) -> bool {
    INTERNAL.contains(&name)
}

/// Two different names collide if they have the same key: metric names show '.' as '_'.
pub fn collision_key(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kafkas_rules() {
        for good in ["a", "A.b_c-9", ".hidden", "-dash", "__consumer_offsets", &"x".repeat(249)] {
            assert_eq!(validate_name(good), Ok(()), "{good}");
        }
        assert_eq!(validate_name(""), Err(NameError::Empty));
        for dots in [".", ".."] {
            assert!(matches!(validate_name(dots), Err(NameError::Dots { .. })), "{dots}");
        }
        assert!(matches!(validate_name(&"x".repeat(250)), Err(NameError::TooLong { .. })));
        for bad in ["a b", "a/b", "~new", "a\0", "ü", "a,b", "a:b", "../x"] {
            assert!(matches!(validate_name(bad), Err(NameError::Characters { .. })), "{bad}");
        }
    }

    #[test]
    fn collisions_and_internal_names() {
        assert_eq!(collision_key("a.b_c"), collision_key("a_b.c"));
        assert_ne!(collision_key("a.b"), collision_key("a-b"));
        assert!(is_internal("__consumer_offsets") && is_internal("__transaction_state"));
        assert!(!is_internal("__my_topic"));
    }
}
