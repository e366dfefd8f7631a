#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Mutex;

use zbus::Message;

use super::*;
use crate::{Checking, RootOnly};

/// Allows what it was made with; remembers what it was asked.
struct Fake {
    allowed: Vec<Action>,
    asked: Mutex<Vec<Action>>,
}

impl Authority for Fake {
    fn check<'a>(&'a self, _: Caller<'a>, action: Action, _: &'a Details) -> Checking<'a> {
        self.asked.lock().unwrap().push(action);
        let verdict = if self.allowed.contains(&action) { Verdict::Yes } else { Verdict::No };
        Box::pin(async move { Ok(verdict) })
    }
}

/// Runs a check; says whether it was allowed and what was asked.
fn check(uid: u32, rule: Rule, owner: Option<u32>, allowed: &[Action]) -> (bool, Vec<Action>) {
    let fake = Fake { allowed: allowed.to_vec(), asked: Mutex::default() };
    let call = Message::method_call("/", "Test").build(&()).unwrap();
    let header = call.header();
    let caller = Caller::new(uid, &header);
    let details = Details::new();
    let result = zbus::block_on(authorize(&fake, caller, rule, owner, &details));
    (result.is_ok(), fake.asked.into_inner().unwrap())
}

#[test]
fn root_is_never_asked_about() {
    for rule in [Rule::Everyone, Rule::Needs(Action::Create), Rule::OwnerNeeds(Action::Remove)] {
        assert_eq!(check(0, rule, Some(1000), &[]), (true, vec![]));
    }
}

#[test]
fn an_owner_needs_the_action_alone() {
    let rule = Rule::OwnerNeeds(Action::Remove);
    assert_eq!(check(1000, rule, Some(1000), &[Action::Remove]), (true, vec![Action::Remove]));
    assert_eq!(check(1000, rule, Some(1000), &[]), (false, vec![Action::Remove]));
}

#[test]
fn others_need_manage_others_too() {
    let rule = Rule::OwnerNeeds(Action::Remove);
    let both = vec![Action::Remove, Action::ManageOthers];
    assert_eq!(check(1000, rule, Some(1001), &both), (true, both.clone()));
    assert_eq!(check(1000, rule, Some(1001), &[Action::Remove]), (false, both.clone()));
    assert_eq!(check(1000, rule, None, &[Action::Remove]), (false, both));
}

#[test]
fn an_owner_may_look() {
    let rule = Rule::OwnerOr(Action::Inspect);
    assert_eq!(check(1000, rule, Some(1000), &[]), (true, vec![]));
    assert_eq!(check(1000, rule, Some(1001), &[]), (false, vec![Action::Inspect]));
    assert_eq!(check(1000, rule, None, &[Action::Inspect]), (true, vec![Action::Inspect]));
}

#[test]
fn without_polkit_root_is_alone() {
    let call = Message::method_call("/", "Test").build(&()).unwrap();
    let header = call.header();
    let details = Details::new();
    let ask = |uid| {
        let caller = Caller::new(uid, &header);
        zbus::block_on(authorize(&RootOnly, caller, Rule::Needs(Action::Create), None, &details))
    };
    assert_eq!(ask(0), Ok(()));
    assert_eq!(ask(1000), Err(Denied::Refused { uid: 1000, action: Action::Create }));
}

#[test]
fn what_is_not_in_the_table_has_no_rule() {
    assert_eq!(rule("org.vgpu.Host1.Manager", "CreateVgpu"), Some(Rule::Needs(Action::Create)));
    assert_eq!(rule("org.vgpu.Host1.Vgpu", "CreateVgpu"), None);
    assert_eq!(rule("org.vgpu.Host1.Manager", "Format"), None);
}

#[test]
fn only_a_message_that_allows_it_is_interactive() {
    let flags = Flags::ALLOW_INTERACTIVE_AUTH;
    let call = Message::method_call("/", "Test").with_flags(flags).build(&()).unwrap();
    let header = call.header();
    assert!(Caller::new(1000, &header).interactive);
    assert!(!Caller::new(1000, &header).quietly().interactive);
    let call = Message::method_call("/", "Test").build(&()).unwrap();
    assert!(!Caller::new(1000, &call.header()).interactive);
}
