//! Every tree in `tests/fixtures`, from its file to the picture that the engine
//! has of it. A new tree needs no code: `cargo insta review` shows its picture.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{fs, path::Path};

use vgpu_mdev::config::Config;
use vgpu_tests::{fixture::Tree, render::render, start::engine_on};

/// What the administrator of that host decided: `host.toml` beside the tree.
fn config(tree: &Path) -> Config {
    let file = tree.with_extension("toml");
    match fs::read_to_string(&file) {
        Ok(text) => Config::parse(&text, file).unwrap(),
        Err(_) => Config::default(),
    }
}

#[test]
fn fixtures() {
    insta::glob!("../fixtures", "*/*.tree", |file| {
        let tree = Tree::load(file).unwrap_or_else(|error| panic!("{error}"));
        let sys = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        tree.lay_out(sys.path()).unwrap();
        let engine = engine_on(sys.path(), scratch.path(), config(file)).unwrap();
        let head: String = fs::read_to_string(file)
            .unwrap()
            .lines()
            .take_while(|line| line.starts_with('#'))
            .flat_map(|line| [line.trim_start_matches(['#', ' ']), "\n"])
            .collect();
        insta::with_settings!({ description => head.trim_end(), omit_expression => true }, {
            insta::assert_snapshot!(render(&engine.snapshot()));
        });
        let claims = scratch.path().join("run/claims");
        assert_eq!(fs::read_dir(claims).unwrap().count(), 0, "discovery claimed something");
    });
}
