#!/bin/sh
# `driver` and `executor` are what Spark on Kubernetes starts in its pods, with variables that say how, as in the images
# apache/spark. All else is arguments of the command `fkjoin`. Under tini nothing that lost its parent stays a zombie, and signals arrive.
set -eu
case "${1:-}" in
  driver)
    shift
    cd /tmp # Spark puts what it fetches into the working folder
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    cd /tmp
    shift $#
    number=0
    while eval "option=\${SPARK_JAVA_OPT_$number-}" && [ -n "$option" ]; do
      set -- "$@" "$option"
      number=$((number + 1))
    done
    classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:${HADOOP_CONF_DIR:+$HADOOP_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}"
    classes="$classes$SPARK_HOME/jars/*:${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}${SPARK_DIST_CLASSPATH:+$SPARK_DIST_CLASSPATH:}$PWD"
    exec tini -s -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *) exec tini -s -- fkjoin "$@" ;;
esac
