//! File systems shared with other machines: lock and clock would differ between the users of a bucket.

use super::error::{FileError, failed};
use std::fs::File;
use std::path::Path;

/// The numbers of `statfs(2)`. A virtual machine shares 9P with its host, which has another boot clock.
const NUMBERS: [(u32, &str); 5] =
    [(0x6969, "NFS"), (0x517B, "SMB"), (0xFE53_4D42, "SMB2"), (0xFF53_4D42, "CIFS"), (0x0102_1997, "9P")];

const FUSE: u32 = 0x6573_5546;

/// Refuses a file on a network file system. Systems other than Linux report no kind.
pub(super) fn refuse(path: &Path, file: &File) -> Result<(), FileError> {
    let failed = |error| failed("inspect the file system of", path, error);
    let system = rustix::fs::fstatfs(file).map_err(failed)?;
    let kind = match low(i128::from(system.f_type)) {
        FUSE => {
            let device = rustix::fs::fstat(file).map_err(failed)?.st_dev;
            // Without /proc the source is unknown; most such file systems are local.
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            by_mount(&mounts, (rustix::fs::major(device), rustix::fs::minor(device)))
        }
        number => NUMBERS.iter().find(|(known, _)| number == *known).map(|(_, kind)| (*kind).to_owned()),
    };
    let message = |kind| {
        let path = path.display();
        format!(
            "{path} is on a network file system ({kind}), where machines do not share a clock; choose a place on this machine"
        )
    };
    kind.map_or(Ok(()), |kind| Err(FileError::Unsuitable(message(kind))))
}

/// The lower 32 bits. The type of the number, and so its sign, differs between machines.
fn low(number: i128) -> u32 {
    u32::try_from(number & 0xFFFF_FFFF).unwrap_or(0)
}

/// The kind of the file system on `device` if its source is another machine, as in `me@host:/folder` or `https://…`.
/// df(1) uses the colon in the same way. A path is local.
fn by_mount(mounts: &str, device: (u32, u32)) -> Option<String> {
    let device = format!("{}:{}", device.0, device.1);
    let of_device = |line: &&str| line.split(' ').nth(2) == Some(device.as_str());
    let (_, words) = mounts.lines().find(of_device)?.split_once(" - ")?;
    let (kind, rest) = words.split_once(' ')?;
    let source = rest.split(' ').next()?;
    (source.contains(':') && !source.starts_with('/')).then(|| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_file_systems_are_known_by_the_source_of_their_mount() {
        let mounts = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
40 27 0:40 / /home/me/web rw,nosuid,nodev,relatime shared:9 - fuse.sshfs me@host:/srv rw,user_id=0,group_id=0
42 27 0:42 / /mnt/dav rw - fuse https://dav.example.com/ rw
45 27 0:45 / /view rw - fuse.bindfs /srv/a:b rw
46 27 8:17 / /mnt/windows rw - fuseblk /dev/sdb1 rw
47 27 0:47 / /var/lib/containers/merged rw - fuse.fuse-overlayfs fuse-overlayfs rw
49 27 0:49
";
        let kind = |minor| by_mount(mounts, (0, minor));
        assert_eq!((kind(40), kind(42)), (Some("fuse.sshfs".into()), Some("fuse".into())));
        assert_eq!((kind(45), by_mount(mounts, (8, 17)), kind(47)), (None, None, None), "local ones");
        assert_eq!((kind(49), kind(50), by_mount("", (0, 40))), (None, None, None), "without a known mount");
        assert_eq!(low(i128::from(0xFF53_4D42_u32.cast_signed())), 0xFF53_4D42);
    }
}
