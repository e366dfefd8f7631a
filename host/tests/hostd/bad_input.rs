//! Bad input gives a clear error each, changes nothing, and the daemon stays up.

use vgpu_host_api::error::{self, standard::INVALID_ARGS};
use zbus::Variant;

use crate::{
    bus::{Bus, Failed, GPU, MANAGER, Options, ROOT, VGPU, call, create, options},
    daemon::Daemon,
};

const UUID: &str = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001";

/// What is wrong with a CreateVgpu: profile, options, the error's name, and
/// words that its text has.
fn cases(huge: &str) -> Vec<(&str, Options, &'static str, Vec<&'static str>)> {
    let one = |key, value: Variant<'_>| options([(key, value)]);
    vec![
        // Profiles.
        ("", Options::new(), INVALID_ARGS, vec!["\"\"", "vgpuctl profiles"]),
        ("a\u{1b}[2Jb", Options::new(), INVALID_ARGS, vec![r#""a\u{1b}[2Jb""#]),
        ("mtty-1\n", Options::new(), INVALID_ARGS, vec![r#""mtty-1\n""#]),
        (huge, Options::new(), INVALID_ARGS, vec!["1048576 bytes", "255"]),
        ("../mtty-1", Options::new(), error::NO_SUCH_PROFILE, vec!["../mtty-1"]),
        ("nvidia-9", Options::new(), error::NO_SUCH_PROFILE, vec!["nvidia-9"]),
        // UUIDs.
        ("mtty-1", one("uuid", "".into()), INVALID_ARGS, vec!["UUID", "8-4-4-4-12"]),
        (
            "mtty-1",
            one("uuid", "83b8f4f2509f382f3c1ee6bfe0fa1001".into()),
            INVALID_ARGS,
            vec!["UUID"],
        ),
        (
            "mtty-1",
            one("uuid", "00000000-0000-0000-0000-000000000000".into()),
            INVALID_ARGS,
            vec!["not all zero"],
        ),
        (
            "mtty-1",
            one("uuid", "../../../../../../../../etc/passwd__".into()),
            INVALID_ARGS,
            vec!["etc/passwd"],
        ),
        ("mtty-1", one("uuid", huge.into()), INVALID_ARGS, vec!["uuid has 1048576 bytes"]),
        // GPUs and functions.
        ("mtty-1", one("gpu", "..".into()), INVALID_ARGS, vec!["\"..\"", "PCI address"]),
        ("mtty-1", one("gpu", "a/b".into()), INVALID_ARGS, vec!["a/b"]),
        ("mtty-1", one("gpu", "".into()), INVALID_ARGS, vec!["PCI address"]),
        ("mtty-1", one("gpu", "a\u{7}".into()), INVALID_ARGS, vec![r#"a\u{7}"#]),
        ("mtty-1", one("gpu", "0000:99:00.0".into()), error::NO_SUCH_GPU, vec!["0000:99:00.0"]),
        (
            "flex-140-vf",
            one("function", "0000:41:00".into()),
            INVALID_ARGS,
            vec!["0000:41:00", "PCI address"],
        ),
        ("flex-140-vf", one("function", "41:00.9".into()), INVALID_ARGS, vec!["41:00.9"]),
        // Names.
        ("mtty-1", one("name", "".into()), INVALID_ARGS, vec!["vGPU name"]),
        ("mtty-1", one("name", "-rf".into()), INVALID_ARGS, vec!["-rf"]),
        ("mtty-1", one("name", "a b".into()), INVALID_ARGS, vec!["a b"]),
        (
            "mtty-1",
            one("name", "a\0b".replace('\0', "\u{1}").as_str().into()),
            INVALID_ARGS,
            vec![r#"a\u{1}b"#],
        ),
        // Options.
        ("mtty-1", one("uid", 0u32.into()), INVALID_ARGS, vec!["\"uid\"", "owner-uid"]),
        ("mtty-1", one("gpu\n", "mtty".into()), INVALID_ARGS, vec![r#""gpu\n""#]),
        ("mtty-1", one(huge, 0u32.into()), INVALID_ARGS, vec!["…"]),
        ("mtty-1", one("gpu", 7u32.into()), INVALID_ARGS, vec!["gpu", "a string (s)", "type u"]),
        ("mtty-1", one("owner-uid", "0".into()), INVALID_ARGS, vec!["owner-uid", "(u)", "type s"]),
        ("mtty-1", one("owner-uid", (-1i32).into()), INVALID_ARGS, vec!["owner-uid", "type i"]),
        ("mtty-1", one("owner-uid", u32::MAX.into()), INVALID_ARGS, vec!["4294967295"]),
        ("mtty-1", one("enable-vfs", 1u32.into()), INVALID_ARGS, vec!["enable-vfs", "(b)"]),
        ("mtty-1", one("numa-node", 1u64.into()), INVALID_ARGS, vec!["numa-node", "type t"]),
        ("mtty-1", one("uuid", Variant::new(vec![UUID])), INVALID_ARGS, vec!["uuid", "type as"]),
    ]
}

#[tokio::test]
async fn creating_with_bad_input() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let huge = "x".repeat(1 << 20);
    for (profile, options, name, words) in cases(&huge) {
        let shown: String = format!("{profile} {options:?}").chars().take(80).collect();
        let failed =
            call(&connection, ROOT, MANAGER, "CreateVgpu", &(profile, options)).await.unwrap_err();
        check(&failed, name, &words, &shown);
    }
    // Nothing has changed, and it still works.
    let reply = call(&connection, ROOT, MANAGER, "ListVgpus", &(Options::new(),)).await.unwrap();
    assert!(
        reply
            .body()
            .deserialize::<Vec<(String, String, String, String, String, u32, u32)>>()
            .unwrap()
            .is_empty()
    );
    create(&connection, "mtty-1", Options::new()).await;
}

fn check(failed: &Failed, name: &str, words: &[&str], of: &str) {
    assert_eq!(failed.name, name, "{of}: {}", failed.text);
    for word in words {
        assert!(failed.text.contains(word), "{of}: {} lacks {word:?}", failed.text);
    }
    assert!(failed.text.len() < 2048, "{of}: {} bytes of text", failed.text.len());
    assert!(!failed.text.contains(char::is_control), "{of}: {:?}", failed.text);
}

#[tokio::test]
async fn looking_up_with_bad_input() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let huge = "x".repeat(1 << 20);
    let cases = [
        ("GetGpu", "", INVALID_ARGS),
        ("GetGpu", "../..", INVALID_ARGS),
        ("GetGpu", "a\u{1b}b", INVALID_ARGS),
        ("GetGpu", &huge, INVALID_ARGS),
        ("GetGpu", "0000:99:00.0", error::NO_SUCH_GPU),
        ("GetGpu", "nowhere", error::NO_SUCH_GPU),
        ("GetVgpu", "", INVALID_ARGS),
        ("GetVgpu", "../..", INVALID_ARGS),
        ("GetVgpu", "a\nb", INVALID_ARGS),
        ("GetVgpu", &huge, INVALID_ARGS),
        ("GetVgpu", UUID, error::NO_SUCH_VGPU),
        ("GetVgpu", "nobody", error::NO_SUCH_VGPU),
    ];
    for (member, argument, name) in cases {
        let shown: String = argument.chars().take(40).collect();
        let failed = call(&connection, ROOT, MANAGER, member, &(argument,)).await.unwrap_err();
        check(&failed, name, &[], &format!("{member} {shown:?}"));
    }
    let failed = call(&connection, ROOT, MANAGER, "GetVgpuByPid", &(u32::MAX,)).await.unwrap_err();
    check(&failed, error::NO_SUCH_VGPU, &["4294967295"], "GetVgpuByPid");
    let filter = options([("gpu", "nowhere".into())]);
    for member in ["ListVgpus", "ListProfiles"] {
        let failed =
            call(&connection, ROOT, MANAGER, member, &(filter.clone_all(),)).await.unwrap_err();
        check(&failed, error::NO_SUCH_GPU, &["nowhere"], member);
    }
}

trait CloneAll {
    fn clone_all(&self) -> Options;
}

impl CloneAll for Options {
    fn clone_all(&self) -> Options {
        self.iter().map(|(key, value)| (key.clone(), value.try_clone().unwrap())).collect()
    }
}

#[tokio::test]
async fn objects_with_bad_input() {
    let bus = Bus::start();
    let _daemon = Daemon::start(&bus);
    let connection = bus.connect().await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    let mtty = "/org/vgpu/Host1/gpus/mdev_mtty";
    let sriov = "/org/vgpu/Host1/gpus/pci_0000_41_00_0";
    let odd = || options([("colour", "red".into())]);
    let failed = call(&connection, &vgpu, VGPU, "Remove", &(odd(),)).await.unwrap_err();
    check(&failed, INVALID_ARGS, &["Remove", "colour", "force"], "Remove");
    let failed = call(&connection, &vgpu, VGPU, "OpenDevice", &(odd(),)).await.unwrap_err();
    check(&failed, INVALID_ARGS, &["OpenDevice", "colour", "group"], "OpenDevice");
    let failed = call(&connection, sriov, GPU, "SetVfCount", &(1u32, odd())).await.unwrap_err();
    check(&failed, INVALID_ARGS, &["SetVfCount", "colour", "takes none"], "SetVfCount");
    let failed = call(&connection, mtty, GPU, "SetVfCount", &(1u32, Options::new())).await;
    check(&failed.unwrap_err(), error::NOT_SUPPORTED, &["mtty"], "SetVfCount of a parent");
    let failed = call(&connection, sriov, GPU, "SetVfCount", &(u32::MAX, Options::new())).await;
    let failed = failed.unwrap_err();
    assert!(failed.name == INVALID_ARGS || failed.name == error::NO_CAPACITY, "{failed:?}");
    let failed = call(&connection, mtty, GPU, "Explain", &("\u{1b}",)).await.unwrap_err();
    check(&failed, error::NO_SUCH_PROFILE, &[], "Explain");
    // It is still there.
    call(&connection, &vgpu, VGPU, "GetHolders", &()).await.unwrap();
}
