//! What a reload of the file leaves as it is.

use crate::config::Config;

impl Config {
    /// The settings that differ in `newer` and count from the next start of the process on, by their names in the file:
    /// a reload brings volumes, their lists and `tls.min_version` only.
    #[must_use]
    pub fn left_to_the_next_start(&self, newer: &Self) -> Vec<&'static str> {
        // Without `..`: whoever adds a setting decides here whether a reload brings it.
        let Self {
            data_dir,
            store,
            single_writer,
            log_format,
            read_only: _,
            memory,
            cache,
            cache_wear,
            shards,
            lease,
            key_file,
            key_command,
            encrypt,
            nbd,
            tls,
            api,
            limits,
            defaults: _,
            volumes: _,
        } = self;
        let differs = [
            ("data_dir", *data_dir != newer.data_dir),
            ("store", *store != newer.store),
            ("single_writer", *single_writer != newer.single_writer),
            ("log_format", *log_format != newer.log_format),
            ("memory", *memory != newer.memory),
            ("cache", *cache != newer.cache),
            ("cache_wear", *cache_wear != newer.cache_wear),
            ("shards", *shards != newer.shards),
            ("lease", *lease != newer.lease),
            ("key_file", *key_file != newer.key_file),
            ("key_command", *key_command != newer.key_command),
            ("encrypt", *encrypt != newer.encrypt),
            ("[nbd]", *nbd != newer.nbd),
            ("tls.certificates", tls.certificates != newer.tls.certificates),
            ("[api]", *api != newer.api),
            ("[limits]", *limits != newer.limits),
        ];
        differs.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reload_does_not_bring_is_named() {
        let parse = |text: &str| Config::parse(text, "here").expect("valid");
        let named = |text: &str| Config::default().left_to_the_next_start(&parse(text));
        assert_eq!(named("memory = \"1G\"\n[nbd]\nlisten = \"[::1]:1\"\n"), ["memory", "[nbd]"]);
        assert_eq!(named("[tls]\ncertificates = \"/x\"\n"), ["tls.certificates"]);
        let brought = "read_only = true\n[tls]\nallow = [\"a\"]\nmin_version = \"1.2\"\n\
                       [defaults]\nrpo = 5.0\n[[volumes]]\nname = \"a\"\n";
        assert_eq!(named(brought), [""; 0]);
        assert_eq!(parse("lease = 5.0").left_to_the_next_start(&parse("lease = 5.0")), [""; 0]);
    }
}
