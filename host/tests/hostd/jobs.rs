//! Work that outlives its call.

use std::{collections::HashMap, time::Duration};

use vgpu_mdev::sys::sim::{Calls, FaultOn};
use zbus::{OwnedObjectPath, OwnedVariant};

use crate::{
    bus::{Bus, GPU, JOB, MANAGER, Options, ROOT, VGPU, call, create, options, property},
    served::Served,
    signals::{next, watch},
};

type Removed = (u32, OwnedObjectPath, String, HashMap<String, OwnedVariant>);

const CREATE: &str = "*/mtty-1/create";

#[tokio::test(flavor = "multi_thread")]
async fn long_work_goes_on_as_a_job() {
    let bus = Bus::start();
    let served = Served::patient(&bus, Duration::from_millis(200));
    let connection = bus.connect().await;
    let mut new = watch(&connection, "JobNew").await;
    let mut removed = watch(&connection, "JobRemoved").await;
    let blocked = served.kernel.block(CREATE, FaultOn::Write(Calls::All));

    let reply = call(&connection, ROOT, MANAGER, "CreateVgpu", &("mtty-1", Options::new())).await;
    let (vgpu, created, job): (OwnedObjectPath, bool, OwnedObjectPath) =
        reply.unwrap().body().deserialize().unwrap();
    assert!(created);
    assert_eq!(job.as_str(), "/org/vgpu/Host1/jobs/1");
    let told: (u32, OwnedObjectPath) = next(&mut new).await.body().deserialize().unwrap();
    assert_eq!(told, (1, job.clone()));
    let operation: String = property(&connection, job.as_str(), JOB, "Operation").await;
    assert!(operation.starts_with("creating ") && operation.contains("mtty-1"), "{operation}");
    let progress: f64 = property(&connection, job.as_str(), JOB, "Progress").await;
    assert!((0.0..1.0).contains(&progress), "{progress}");

    drop(blocked);
    let (id, path, result, details): Removed =
        next(&mut removed).await.body().deserialize().unwrap();
    assert_eq!((id, path, result.as_str()), (1, job.clone(), "done"), "{details:?}");
    assert!(details.is_empty());
    // What the early reply named is there, and the job is not.
    let properties = "org.freedesktop.DBus.Properties";
    let vgpu_interface = "org.vgpu.Host1.Vgpu";
    call(&connection, vgpu.as_str(), properties, "GetAll", &(vgpu_interface,)).await.unwrap();
    let gone = call(&connection, job.as_str(), JOB, "Cancel", &()).await.unwrap_err();
    assert_eq!(gone.name, "org.freedesktop.DBus.Error.UnknownObject");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_says_why() {
    let bus = Bus::start();
    let served = Served::patient(&bus, Duration::from_millis(200));
    let connection = bus.connect().await;
    let mut removed = watch(&connection, "JobRemoved").await;
    // The kernel takes its time to make it, and then shows nothing of it.
    served.kernel.lie(CREATE, FaultOn::Write(Calls::All));
    call(&connection, ROOT, MANAGER, "CreateVgpu", &("mtty-1", Options::new())).await.unwrap();
    let (_, _, result, details): Removed = next(&mut removed).await.body().deserialize().unwrap();
    assert_eq!(result, "failed");
    let text = |key: &str| -> String { details[key].try_clone().unwrap().try_into().unwrap() };
    assert!(text("Error").starts_with("org.vgpu.Host1.Error."), "{details:?}");
    assert!(text("Message").contains("creating vGPU"), "{}", text("Message"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_its_owners_to_cancel() {
    let bus = Bus::start();
    let served = Served::patient(&bus, Duration::from_millis(200));
    let connection = bus.connect().await;
    let mut removed = watch(&connection, "JobRemoved").await;
    let blocked = served.kernel.block(CREATE, FaultOn::Write(Calls::All));
    let reply = call(&connection, ROOT, MANAGER, "CreateVgpu", &("mtty-1", Options::new())).await;
    let (_, _, job): (OwnedObjectPath, bool, OwnedObjectPath) =
        reply.unwrap().body().deserialize().unwrap();
    bus.call_as(1, &[job.as_str(), JOB, "Cancel"]).unwrap_err();
    call(&connection, job.as_str(), JOB, "Cancel", &()).await.unwrap();
    drop(blocked);
    let (_, _, result, _): Removed = next(&mut removed).await.body().deserialize().unwrap();
    // Its one step may have been its last.
    assert!(result == "cancelled" || result == "done", "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sender_has_so_much_at_work() {
    let bus = Bus::start();
    let served = Served::start(&bus);
    let connection = bus.connect().await;
    let blocked = served.kernel.block(CREATE, FaultOn::Write(Calls::All));
    let calls = (0..17).map(|_| {
        let connection = connection.clone();
        async move {
            let body = ("mtty-1", Options::new());
            call(&connection, ROOT, MANAGER, "CreateVgpu", &body).await
        }
    });
    let mut calls: futures_util::stream::FuturesUnordered<_> = calls.collect();
    use futures_util::StreamExt as _;
    // The first answer is the refusal of the one too many.
    let refused = calls.next().await.unwrap().unwrap_err();
    assert_eq!(refused.name, "org.freedesktop.DBus.Error.LimitsExceeded");
    assert!(refused.text.contains("16 calls of yours"), "{}", refused.text);
    // Others are answered meanwhile.
    let other = bus.connect().await;
    call(&other, ROOT, MANAGER, "ListGpus", &()).await.unwrap();
    drop(blocked);
    while let Some(answer) = calls.next().await {
        answer.unwrap();
    }
    served.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_finishes_what_runs() {
    let bus = Bus::start();
    let served = Served::patient(&bus, Duration::from_millis(200));
    let connection = bus.connect().await;
    let mut removed = watch(&connection, "JobRemoved").await;
    let blocked = served.kernel.block(CREATE, FaultOn::Write(Calls::All));
    call(&connection, ROOT, MANAGER, "CreateVgpu", &("mtty-1", Options::new())).await.unwrap();
    let engine = served.engine.clone();
    let stopped = tokio::task::spawn_blocking(move || served.stop());
    // No more work begins: sooner or later the stop is seen. What is asked does not
    // wait for the GPU that hangs.
    let (other, profile) = ("/org/vgpu/Host1/gpus/pci_0000_41_00_0", "flex-140-vf");
    loop {
        if let Err(refused) = call(&connection, other, GPU, "Explain", &(profile,)).await {
            assert_eq!(refused.name, "org.vgpu.Host1.Error.Busy");
            assert!(refused.text.contains("stopping"), "{}", refused.text);
            break;
        }
    }
    // Looking goes on.
    call(&connection, ROOT, MANAGER, "ListVgpus", &(Options::new(),)).await.unwrap();
    drop(blocked);
    stopped.await.unwrap();
    let (_, _, result, _): Removed = next(&mut removed).await.body().deserialize().unwrap();
    assert_eq!(result, "done");
    assert_eq!(engine.snapshot().vgpu_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_does_not_wait_for_what_never_ends() {
    let bus = Bus::start();
    let served = Served::patient(&bus, Duration::from_millis(100));
    let connection = bus.connect().await;
    let vgpu = create(&connection, "mtty-1", Options::new()).await;
    let blocked = served.kernel.block("*/remove", FaultOn::Write(Calls::All));
    let force = options([("force", true.into())]);
    let reply = call(&connection, &vgpu, VGPU, "Remove", &(force,)).await.unwrap();
    let job: OwnedObjectPath = reply.body().deserialize().unwrap();
    assert_eq!(job.as_str(), "/org/vgpu/Host1/jobs/1");
    tokio::task::spawn_blocking(move || served.stop()).await.unwrap();
    let gone = call(&connection, ROOT, MANAGER, "ListGpus", &()).await.unwrap_err();
    assert_eq!(gone.name, "org.freedesktop.DBus.Error.ServiceUnknown");
    drop(blocked);
}
