//! File systems shared with other machines: lock and clock would differ between the users of a bucket.

use super::error::FileError;
use std::fs::File;
use std::path::Path;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn refuse(path: &Path, file: &File) -> Result<(), FileError> {
    match linux::kind(path, file)? {
        Some(kind) => Err(FileError::Network { path: path.to_owned(), kind }),
        None => Ok(()),
    }
}

/// There is no portable way to find out.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn refuse(_: &Path, _: &File) -> Result<(), FileError> {
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use super::super::error::FileError;
    use super::super::place::failed;
    use std::fs::File;
    use std::path::Path;

    /// The numbers of `statfs(2)`. The last ones are file systems that a virtual machine shares with its host, which
    /// has another boot clock.
    const NUMBERS: [(u32, &str); 18] = [
        (0x6969, "NFS"),
        (0x517B, "SMB"),
        (0xFE53_4D42, "SMB2"),
        (0xFF53_4D42, "CIFS"),
        (0x5346_414F, "AFS"),
        (0x6B41_4653, "AFS"),
        (0x7375_7245, "Coda"),
        (0x00C3_6400, "Ceph"),
        (0x7461_636F, "OCFS2"),
        (0x0BD0_0BD0, "Lustre"),
        (0x0116_1970, "GFS2"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x2003_0528, "OrangeFS"),
        (0x0102_1997, "9P"),
        (0x786F_4256, "vboxsf"),
        (0xBACB_ACBC, "vmhgfs"),
        (0x7C7C_6673, "prl_fs"),
    ];

    const FUSE: u32 = 0x6573_5546;

    /// File systems that a program serves, as `/proc/self/mountinfo` names them. They are refused even if their mount
    /// source shows no remote host.
    const SERVED: [&str; 20] = [
        "virtiofs",
        "fuse.blobfuse",
        "fuse.blobfuse2",
        "fuse.ceph-fuse",
        "fuse.curlftpfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.grpcfuse",
        "fuse.gvfsd-fuse",
        "fuse.juicefs",
        "fuse.mfs",
        "fuse.mountpoint-s3",
        "fuse.osxfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.seaweedfs",
        "fuse.smbnetfs",
        "fuse.sshfs",
        "fuse.vmhgfs-fuse",
    ];

    /// The kind of network file system, or `None` if it is local.
    pub(super) fn kind(path: &Path, file: &File) -> Result<Option<&'static str>, FileError> {
        let failed = |error| failed("look at the file system of", path, error);
        let system = rustix::fs::fstatfs(file).map_err(failed)?;
        let number = low(i128::from(system.f_type));
        if number != FUSE {
            return Ok(by_number(number));
        }
        let device = rustix::fs::fstat(file).map_err(failed)?.st_dev;
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        // Without /proc this cannot be found out; most such file systems are local.
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Ok(by_mount(&mounts, device))
    }

    /// The type of the number, and so its sign, differs between machines.
    fn low(number: i128) -> u32 {
        u32::try_from(number & 0xFFFF_FFFF).unwrap_or(0)
    }

    fn by_number(number: u32) -> Option<&'static str> {
        NUMBERS.iter().find(|(known, _)| number == *known).map(|(_, kind)| *kind)
    }

    /// Whether the file system on `device` is a known network file system, or its source is another machine, as in
    /// `me@host:/folder` or `https://…`. df(1) uses the colon in the same way. A path is local.
    fn by_mount(mounts: &str, device: (u32, u32)) -> Option<&'static str> {
        let device = format!("{}:{}", device.0, device.1);
        let of_device = |line: &&str| line.split(' ').nth(2) == Some(device.as_str());
        let (_, words) = mounts.lines().find(of_device)?.split_once(" - ")?;
        let mut words = words.split(' ');
        let (kind, source) = (words.next()?, words.next()?);
        let elsewhere = source.contains(':') && !source.starts_with('/');
        SERVED.iter().find(|served| kind == **served).copied().or(elsewhere.then_some("FUSE"))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn network_file_systems_are_known_by_their_numbers() {
            assert_eq!(by_number(0x6969), Some("NFS"));
            assert_eq!(by_number(low(i128::from(0xFF53_4D42_u32.cast_signed()))), Some("CIFS"));
            assert_eq!(by_number(0x0102_1997), Some("9P"));
            assert_eq!((by_number(0xEF53), by_number(0x0102_1994)), (None, None), "ext4 and tmpfs are not");
        }

        #[test]
        fn fuse_file_systems_are_known_by_their_mount() {
            let mounts = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
40 27 0:40 / /home/me/web rw,nosuid,nodev,relatime shared:9 - fuse.sshfs me@host:/srv rw,user_id=0,group_id=0
41 27 0:41 / /mnt/s3 rw - fuse.s3fs s3fs rw,user_id=0
42 27 0:42 / /mnt/dav rw - fuse https://dav.example.com/ rw
43 27 0:43 / /mnt/new rw - fuse.brandnew host:/volume rw
44 27 0:44 / /share rw - virtiofs share rw
45 27 0:45 / /view rw - fuse.bindfs /srv/a:b rw
46 27 8:17 / /mnt/windows rw - fuseblk /dev/sdb1 rw
47 27 0:47 / /var/lib/containers/merged rw - fuse.fuse-overlayfs fuse-overlayfs rw
48 27 0:48 / /safe rw - fuse.gocryptfs /home/me/cipher rw
49 27 0:49
";
            let kind = |minor| by_mount(mounts, (0, minor));
            assert_eq!((kind(40), kind(41), kind(44)), (Some("fuse.sshfs"), Some("fuse.s3fs"), Some("virtiofs")));
            assert_eq!((kind(42), kind(43)), (Some("FUSE"), Some("FUSE")), "by their sources");
            assert_eq!(
                (kind(45), by_mount(mounts, (8, 17)), kind(47), kind(48)),
                (None, None, None, None),
                "local ones"
            );
            assert_eq!((kind(49), kind(50), by_mount("", (0, 40))), (None, None, None), "where nothing is known");
        }
    }
}
