//! Holds a device as a VMM does, for the tests: opens it through VFIO, says
//! `held`, and lets go when its standard input ends. Its arguments are those of
//! `vgpu-vfio-probe`; with `--node /dev/…` alone it opens that node and no more.

use std::{
    error::Error,
    io::{self, Read as _, Write as _},
};

use vgpu_mdev::{
    sys::{
        Kernel as _, NodePath,
        real::{Programs, RealKernel, Roots},
    },
    vfio,
};

fn main() -> Result<(), Box<dyn Error>> {
    let kernel = RealKernel::new(&Roots::default(), Programs::default())?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [option, node] if option == "--node" => {
            let node = node.strip_prefix("/dev/").ok_or("--node takes a path below /dev")?;
            let _held = kernel.open_node(&NodePath::new(node)?)?;
            until_told()
        }
        _ => {
            let target = vfio::target(args)?;
            let held = vfio::open(&kernel, &target).map_err(|refusal| refusal.message)?;
            until_told()?;
            // vfio-ioctls takes the device from its group when it is dropped,
            // and panics when the device is going: the kernel closes it as well.
            std::mem::forget(held);
            Ok(())
        }
    }
}

fn until_told() -> Result<(), Box<dyn Error>> {
    writeln!(io::stdout(), "held")?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
