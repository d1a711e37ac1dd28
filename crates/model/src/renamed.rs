//! Keys and values of earlier releases in TOML files: refused with the new name, never accepted.

/// The new name of the unknown key or value in `message`, a message of serde, as a sentence.
///
/// `renamed` holds pairs of old and new name. `None` where the message is about something else.
pub fn renamed_in(message: &str, renamed: &[(&str, &str)]) -> Option<String> {
    let after = ["unknown field `", "unknown variant `"]
        .into_iter()
        .find_map(|prefix| message.split_once(prefix).map(|(_, after)| after))?;
    let (unknown, _) = after.split_once('`')?;
    let (old, new) = renamed.iter().find(|(old, _)| *old == unknown)?;
    Some(format!("`{old}` was renamed to `{new}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_name_of_the_table_yields_its_new_name() {
        let table = [("bystanders", "foreign_threads"), ("idle", "sched-idle")];
        let field = renamed_in("unknown field `bystanders`, expected one of `a`, `b`", &table);
        assert_eq!(field.as_deref(), Some("`bystanders` was renamed to `foreign_threads`"));
        let value = renamed_in("unknown variant `idle`, expected `sched-idle`", &table);
        assert_eq!(value.as_deref(), Some("`idle` was renamed to `sched-idle`"));
        assert_eq!(renamed_in("unknown field `bystander`, expected `a`", &table), None);
        assert_eq!(renamed_in("invalid type: `bystanders`", &table), None);
        assert_eq!(renamed_in("unknown field `", &table), None);
    }
}
