package fkjoin.faults;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/** Spark's file manager for checkpoints, which kills its own process before or after a file appears, when it is told to. */
public class CrashingFileManager extends FileContextBasedCheckpointFileManager {
  public CrashingFileManager(org.apache.hadoop.fs.Path path, Configuration conf) {
    super(path, conf);
  }

  @Override
  public void renameTempFile(org.apache.hadoop.fs.Path from, org.apache.hadoop.fs.Path to, boolean overwrite) {
    String point = point(to.toUri().getPath());
    crashIfTold(point, "before");
    super.renameTempFile(from, to, overwrite);
    crashIfTold(point, "after");
  }

  private static String point(String path) {
    if (path.matches(".*/offsets/\\d+")) return "offset log";
    if (path.matches(".*/commits/\\d+")) return "offset commit";
    if (path.matches(".*/state/.*\\.changelog")) return "state commit";
    return "other";
  }

  /** The file named by FKJOIN_FAULT says "point|when|victim"; whoever renames it is the one to crash. */
  private static void crashIfTold(String point, String when) {
    try {
      Path fault = Path.of(System.getenv("FKJOIN_FAULT"));
      if (!Files.readString(fault).startsWith(point + "|" + when)) return;
      Files.move(fault, Path.of(fault + ".done"), StandardCopyOption.ATOMIC_MOVE);
      new ProcessBuilder("kill", "-KILL", Long.toString(ProcessHandle.current().pid())).start().waitFor();
      Thread.sleep(60_000);
    } catch (NoSuchFileException nobodyIsToCrash) {
      return;
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }
}
