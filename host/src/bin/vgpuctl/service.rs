//! The way to the service.

use vgpu_host_api::{
    error,
    proxy::{GpuProxy, ManagerProxy, VgpuProxy},
};
use zbus::{Connection, OwnedObjectPath, proxy::CacheProperties};

use crate::failure::{Code, Failure, Result};

/// A connection to the bus that the service is on.
pub(crate) struct Service {
    connection: Connection,
    address: Option<String>,
}

impl Service {
    /// Connects to the bus at `address`, or to the system bus.
    pub(crate) async fn connect(address: Option<&str>) -> Result<Self> {
        let builder = match address {
            Some(address) => zbus::connection::Builder::address(address),
            None => zbus::connection::Builder::system(),
        };
        let connection = builder.build().await.map_err(|error| match address {
            Some(address) => {
                Failure::new(Code::Unreachable, format!("cannot reach the bus at {address:?}: {error}; start that bus, or name another with --bus or VGPU_BUS"))
            }
            None => Failure::new(
                Code::Unreachable,
                format!("cannot reach the system bus: {error}; start dbus, or name another bus with --bus"),
            ),
        })?;
        Ok(Self { connection, address: address.map(str::to_owned) })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) async fn manager(&self) -> Result<ManagerProxy<'static>> {
        let builder = ManagerProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.build().await.map_err(|error| self.failure(error))
    }

    /// The GPU that people call `name`.
    pub(crate) async fn gpu(&self, name: &str) -> Result<GpuProxy<'static>> {
        let path = self.said(self.manager().await?.get_gpu(name).await)?;
        self.gpu_at(path).await
    }

    /// The GPU at a path that the service gave.
    pub(crate) async fn gpu_at(&self, path: OwnedObjectPath) -> Result<GpuProxy<'static>> {
        let builder = GpuProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.path(path).build().await.map_err(|error| self.failure(error))
    }

    /// The vGPU that people call `name`.
    pub(crate) async fn vgpu(&self, name: &str) -> Result<VgpuProxy<'static>> {
        let path = self.said(self.manager().await?.get_vgpu(name).await)?;
        self.vgpu_at(path).await
    }

    /// The vGPU at a path that the service gave.
    pub(crate) async fn vgpu_at(&self, path: OwnedObjectPath) -> Result<VgpuProxy<'static>> {
        let builder = VgpuProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        builder.path(path).build().await.map_err(|error| self.failure(error))
    }

    /// What the service answered, with its error in our words.
    pub(crate) fn said<T>(&self, answer: zbus::Result<T>) -> Result<T> {
        answer.map_err(|error| self.failure(error))
    }

    /// The service's error: its text as it is, or how to start it.
    pub(crate) fn failure(&self, error: zbus::Error) -> Failure {
        let failure = match error::Failure::of(&error) {
            Some(failure) => Failure::named(&failure.name, &failure.text),
            None if matches!(error, zbus::Error::InputOutput(_)) => {
                Failure::new(Code::Unreachable, error.to_string())
            }
            None => Failure::other(error.to_string()),
        };
        match failure {
            Failure::Said { code: Code::Unreachable, message } => {
                Failure::new(Code::Unreachable, self.unreachable(&message))
            }
            failure => failure,
        }
    }

    fn unreachable(&self, message: &str) -> String {
        let message = message.trim_end_matches('.');
        match &self.address {
            None => format!(
                "vgpu-hostd does not answer: {message}; start it: systemctl start vgpu-hostd"
            ),
            Some(address) => {
                format!(
                    "vgpu-hostd does not answer: {message}; start it, from the libexec folder, with --bus {address}"
                )
            }
        }
    }
}
