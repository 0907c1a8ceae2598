package fkjoin;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/** Hadoop's file system of the local disk, checksums included, but for how it sets permissions: not by a process of its own. */
public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    public static class Raw extends RawLocalFileSystem {
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            if (permission.getStickyBit()) {
                super.setPermission(path, permission);
            } else {
                String actions = new FsPermission(permission.toShort()).toString(); // others are printed in other ways
                Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(actions));
            }
        }
    }
}
