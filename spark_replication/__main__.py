from spark_replication.admin.cli import main

main()
